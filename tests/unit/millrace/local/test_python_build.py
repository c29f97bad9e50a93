"""How builds of Python are told apart, by what they say of themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from millrace.local.python_build import is_optimised

#: Build → its arguments, its flag, and whether it was optimised.
BUILDS = {
    "pyenv": ("'--prefix=/home/a/.pyenv/versions/3.11.7' '--enable-shared'", "-fprofile-use", False),
    "by hand": ("", "-fprofile-use", True),  # no argument at all: it does not say
    "uv": ("'--prefix=/install' '--enable-optimizations' '--with-lto'", "-fprofile-instr-use", True),
    "debian": ("'--with-computed-gotos' '--without-ensurepip'", "", True),
    "windows": (None, None, True),
}


@pytest.mark.parametrize("build", BUILDS)
def test_builds_are_told_apart_by_the_core_and_by_the_set_up_alike(build: str) -> None:
    arguments, flag, optimised = BUILDS[build]
    told: dict[str, Any] = {"CONFIG_ARGS": arguments, "PGO_PROF_USE_FLAG": flag}
    assert is_optimised(told) is optimised
    script = Path(__file__).parents[4] / "scripts" / "setup.py"
    spec = importlib.util.spec_from_file_location("setup_of_project", script)
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    assert setup.is_slow(told) is not optimised


def test_this_one_says_something() -> None:
    assert is_optimised() in (True, False)
