"""What all tests share."""

import gc
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Tests run side by side: threads of one model's training that wait for each other would hold up all of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Helpers with assertions say what differs, as tests do.
pytest.register_assert_rewrite("tests.e2e.fraud_runs", "tests.e2e.fraud_stream")

pytest_plugins = ["millrace.testing.kafka"]

# How long an example takes says how busy the machine is, not whether it is right.
settings.register_profile("millrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run of CI, and half as many: new ones are for those who can look into them.
settings.register_profile("ci", settings.get_profile("millrace"), derandomize=True, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "millrace")

#: The unit tests that ``make test-fast`` leaves out, as the last run with ``--note-slow`` found them.
SLOW = Path(__file__).parent / "unit" / "slow.txt"
#: From how many seconds on a test, with all its cases, is one of them.
SLOW_S = 0.2
#: The files that take longest: begun first, so that at the end no worker waits for one of them.
LONG = (
    "benchmarks/test_uplift.py", "fraud/test_world.py", "fraud/test_loop.py", "parts/test_tail.py",
    "clickstream/test_recommender.py", "clickstream/test_checks.py", "ridesharing/test_eta.py",
    "fraud/test_serving.py", "ridesharing/test_world.py", "ridesharing/test_surge.py",
)  # fmt: skip

# Modules and tests stay: looking through them again and again for what could go is a fifth of the collection.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the quick run."""
    parser.addoption("--fast", action="store_true", help=f"leave out the tests in {SLOW.name}")
    parser.addoption("--note-slow", action="store_true", help=f"write {SLOW.name} anew after the run")


def pytest_configure(config: pytest.Config) -> None:
    """Take note of how long tests take, where it is asked for."""
    if config.getoption("--note-slow") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Noting())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests, where it is asked for, and in CI long ones; what takes longest comes first."""
    items.sort(key=lambda item: not str(item.path).endswith(LONG))
    slow = set(SLOW.read_text("utf-8").splitlines()) if config.getoption("--fast") else set[str]()
    ci = os.environ.get("CI") and "long" not in config.getoption("-m")

    def is_left_out(item: pytest.Item) -> bool:
        return bool(_name(item.nodeid) in slow or (ci and item.get_closest_marker("long")))

    if left_out := [item for item in items if is_left_out(item)]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_left_out(item)]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the collector look at what tests make, and no more at what there is before them."""
    gc.freeze()
    gc.enable()


class _Noting:
    """Adds up how long each test takes, all cases of it."""

    def __init__(self) -> None:
        self.took: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        self.took[_name(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self, session: Any) -> None:
        """Write down who is slow."""
        slow = sorted(name for name, took in self.took.items() if took >= SLOW_S)
        SLOW.write_text("".join(f"{name}\n" for name in slow), "utf-8")


def _name(node: str) -> str:
    """Return a test without its case."""
    return node.split("[")[0]
