"""What all tests share."""

import pytest

# Helpers with assertions say what differs, as tests do.
pytest.register_assert_rewrite("tests.e2e.fraud_runs", "tests.e2e.fraud_stream")

pytest_plugins = ["millrace.testing.kafka"]
