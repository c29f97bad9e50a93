"""Says, from within the process that ran the tests, what was imported from where and which tests failed.

A plug-in of pytest. Where an installed package hid the copy, a mutant would survive whatever it changed: so
what was imported is not believed, it is asked for.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from hypothesis import Phase, settings

#: Where the report is written to.
REPORT: Final = "MILLRACE_MUTANTS_REPORT"
#: Packages of the repository.
OURS: Final = ("millrace", "millrace_apps", "tests")

_failed: list[str] = []


def pytest_sessionstart(session: Any) -> None:
    """Leave examples as they are found: making them smaller takes long and decides nothing."""
    seen = settings.get_profile("ci")
    settings.register_profile("mutants", seen, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")


def pytest_runtest_logreport(report: Any) -> None:
    """Take note of a test that failed."""
    if report.failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish(session: Any) -> None:
    """Write the report."""
    ours = {
        name: str(Path(file).resolve())
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in OURS and (file := getattr(module, "__file__", None)) is not None
    }
    Path(os.environ[REPORT]).write_text(json.dumps({"failed": _failed, "imported": ours}), encoding="utf-8")
