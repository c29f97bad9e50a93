"""The package's former name leads to the same modules, and says what they are called today."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["checkpoint", "tables", "committed"])
def test_a_module_by_its_former_name_is_the_same_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"millrace.inspect.{name}", raising=False)
    today = import_module(f"millrace.checkpoints.{name}")
    spec = today.__spec__
    told = f"millrace.inspect.{name} is the former name of millrace.checkpoints.{name}: import that"
    with pytest.warns(FutureWarning, match=told):
        former = import_module(f"millrace.inspect.{name}")
    assert former is today
    assert today.__spec__ is spec
    assert today.__name__ == f"millrace.checkpoints.{name}"


def test_what_there_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        import_module("millrace.inspect.nothing")
