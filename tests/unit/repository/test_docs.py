"""The pages say what is so: their examples run, what they import exists, where they point is there."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import millrace
import millrace.windows

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages that teach by examples, and how many of them there are at least.
TAUGHT = {
    "concepts.md": 50,
    "joins.md": 20,
    "operators.md": 35,
    "patterns.md": 60,
    "windows.md": 20,
    "writing-a-process.md": 50,
}
#: Modules of the core whose docstrings have examples that need no engine.
PACKAGES = (
    "millrace.joins",
    "millrace.operators",
    "millrace.patterns",
    "millrace.state",
    "millrace.time",
    "millrace.testing",
    "millrace.windows",
)
MODULES = [
    "millrace.process",
    "millrace.batch",
    "millrace.host.memory",
    "millrace.host.system",
    "millrace.inputs",
    "millrace.runtime.scratch",
    *(
        f"{package}.{module.name}"
        for package in PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if f"{package}.{module.name}" != "millrace.testing.kafka"
    ),
]
#: Those of the apps stand beside their code.
OF_APPS = sorted((ROOT / "apps").rglob("*.md"))
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_of_a_page_run_as_they_stand(page: Path) -> None:
    found = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert found.failed == 0
    assert found.attempted >= TAUGHT.get(page.name, 0)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run_as_they_stand(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def plain_blocks() -> list[tuple[str, str]]:
    """Return the Python of the pages that is no doctest: what needs Spark, or only shows a shape."""
    pages = (*PAGES, *OF_APPS)
    found = [(page.name, block) for page in pages for block in _BLOCK.findall(page.read_text("utf-8"))]
    return [(name, block) for name, block in found if ">>>" not in block]


@pytest.mark.parametrize(("page", "block"), plain_blocks())
def test_code_of_a_page_is_python_and_imports_what_exists(page: str, block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "millrace":
            module = importlib.import_module(node.module)
            missing = [a.name for a in node.names if a.name not in (*dir(module), *millrace.__all__)]
            assert missing == [], f"{page} imports what {node.module} does not have"


@pytest.mark.parametrize("page", [*PAGES, *OF_APPS], ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    targets = [t for t in _LINK.findall(text) if "://" not in t]
    broken = [t for t in targets if not leads_somewhere(page, t)]
    assert broken == []


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    if not found.exists():
        return False
    return not anchor or anchor in {slug(line) for line in found.read_text("utf-8").splitlines()}


def slug(line: str) -> str:
    """Return the anchor of a heading."""
    kept = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
    return kept.replace(" ", "-") if line.startswith("#") else ""


def test_what_to_read_names_every_page() -> None:
    guide = ROOT / "docs" / "README.md"
    named = {
        (guide.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(guide.read_text("utf-8"))
    }
    pages = {page for page in (ROOT / "docs").glob("*.md") if page != guide}
    assert not {page.name for page in pages if page not in named}


def test_the_tree_of_the_architecture_is_that_of_the_core() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tree = text.partition("```\nshared/millrace/")[2].partition("\napps/")[0]
    named = set(re.findall(r"(\w+)(?=/|\.py)", tree))
    core = ROOT / "shared" / "millrace"
    there = {one.stem for one in core.iterdir() if one.is_dir() or one.suffix == ".py"} - {
        "__init__",
        "__main__",
    }
    rooms = {name for name in there if not name.startswith("__")} - {"py"}
    assert rooms - named == set(), "not in the tree"
    assert {word for word in re.findall(r"^  (\w+)/ ", tree, re.MULTILINE) if word not in rooms} == set()
