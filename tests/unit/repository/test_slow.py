"""The list of slow tests says what there is."""

from __future__ import annotations

import re

from tests.conftest import SLOW

ROOT = SLOW.parents[2]

#: Where tests stand that others inherit.
INHERITED = (ROOT / "shared/millrace/testing/app_contract.py").read_text("utf-8")


def test_every_slow_test_exists() -> None:
    gone = []
    for name in SLOW.read_text("utf-8").splitlines():
        file, *path = name.split("::")
        text = (ROOT / file).read_text("utf-8") + INHERITED if (ROOT / file).is_file() else ""
        if not all(re.search(rf"^\s*(def|class) {re.escape(part)}\b", text, re.MULTILINE) for part in path):
            gone.append(name)
    assert gone == [], "write the list anew: pytest tests/unit -n 2 --dist loadfile --note-slow"
