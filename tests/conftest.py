"""What all tests share."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Helpers with assertions say what differs, as tests do.
pytest.register_assert_rewrite("tests.e2e.fraud_runs", "tests.e2e.fraud_stream")

pytest_plugins = ["millrace.testing.kafka"]

# How long an example takes says how busy the machine is, not whether it is right.
settings.register_profile("millrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run of CI, and half as many: new ones are for those who can look into them.
settings.register_profile("ci", settings.get_profile("millrace"), derandomize=True, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "millrace")
