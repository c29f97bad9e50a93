"""Statements of product code by package, today and at another commit: `python -m tests.statements ff6a51dc`.

Statements of the syntax tree, docstrings left out, so that formatting counts for nothing. What stands in
modules that are new (neither there before nor moved from where they were) is told apart.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("shared", "apps", "generators", "benchmarks", "recipes")
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def statements(source: str | bytes) -> int:
    r"""Return the number of statements, docstrings left out.

    >>> statements('"What it is."\nif x:\n    y = 1\n')
    2
    """
    found = list(ast.walk(ast.parse(source)))
    documented = (node for node in found if isinstance(node, _DOCUMENTED))
    told = sum(ast.get_docstring(node, clean=False) is not None for node in documented)
    return sum(isinstance(node, ast.stmt) for node in found) - told


def git(*words: str) -> bytes:
    """Return what git says of this repository."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def modules(commit: str) -> dict[str, int]:
    """Return the statements of each module of product code at a commit."""
    folders = git("ls-tree", "--name-only", commit, "--", *FOLDERS).decode().split()
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *folders))) as archive:
        files = {one.name: archive.extractfile(one) for one in archive if one.name.endswith(".py")}
        return {name: statements(file.read()) for name, file in files.items() if file is not None}


def new_modules(before: str, after: str) -> set[str]:
    """Return the modules that are new between two commits; those that have moved are not."""
    told = (
        git("diff", "--name-status", "-M40%", "-l20000", before, after, "--", *FOLDERS).decode().splitlines()
    )
    return {line.split("\t")[1] for line in told if line.startswith("A")}


def package_of(module: str) -> str:
    """Return the package that a module is counted in.

    >>> package_of("apps/fraud/app.py"), package_of("generators/iot/fleet.py")
    ('apps/fraud', 'generators')
    """
    parts = module.split("/")
    return "/".join(parts[: 2 if parts[0] in ("apps", "shared") else 1])


def table(before: str, after: str = "HEAD") -> str:
    """Return the statements by package at two commits, as a table of Markdown."""
    then, now, new = modules(before), modules(after), new_modules(before, after)
    counts = [Counter[str](), Counter[str](), Counter[str]()]
    for count, found in zip(
        counts, (then, now, {name: n for name, n in now.items() if name in new}), strict=True
    ):
        for name, number in found.items():
            count[package_of(name)] += number
    lines = ["| package | before | today | of these in new modules |", "|---|---|---|---|"]
    for package in sorted({name for count in counts for name in count if count[name]}):
        lines.append(f"| `{package}` | {' | '.join(f'{count[package]:,}' for count in counts)} |")
    return "\n".join([*lines, f"| all | {' | '.join(f'{count.total():,}' for count in counts)} |"])


if __name__ == "__main__":
    print(table(*sys.argv[1:]))
