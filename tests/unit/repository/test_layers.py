"""Who may import whom: read from the source, so that no import hides behind a condition or a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Folders at the top level of the repository that are installed under one name.
FOLDERS = ("apps", "generators", "benchmarks", "recipes")
CORE = ROOT / "shared" / "millrace"

#: The modules of the core that may import pyspark, relative to it.
SPARK_ALLOWED = ("host/spark*.py", "playback/spark.py", "runtime/*", "connectors/*", "checkpoints/*")
#: Slow to import, so that modules of the command line import them only inside the commands.
SLOW = {"pyspark", "confluent_kafka", "deltalake", "pandas", "pyarrow"}


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imports(source: str, package: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """Yield every module that a source imports, with its line; relative names are resolved."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def at_import_time(source: str) -> str:
    """Return the source less the bodies of functions and of ``if TYPE_CHECKING``."""

    class Outside(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST:
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                return ast.Pass()
            return self.generic_visit(node)

    return ast.unparse(Outside().visit(ast.parse(source)))


def breaches(folder: Path, forbidden: set[str], *, root: Path, at_import: bool = False) -> list[str]:
    found = []
    for path in sources(folder):
        text = path.read_text(encoding="utf-8")
        package = path.relative_to(root).with_suffix("").parts[:-1]
        for name, line in imports(at_import_time(text) if at_import else text, package):
            if any(name == bad or name.startswith(f"{bad}.") for bad in forbidden):
                found.append(f"{path.relative_to(root)}:{line} imports {name}")
    return found


def installed(folder: str) -> str:
    """Return the name by which a folder of apps, generators, benchmarks or recipes is imported."""
    return f"millrace_apps.{folder}"


def apps() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "apps").glob("*/__init__.py"))


def test_the_core_imports_neither_apps_nor_generators() -> None:
    assert breaches(CORE, {"millrace_apps", "tests", *FOLDERS}, root=ROOT / "shared") == []


def test_nothing_is_imported_by_the_name_of_its_folder() -> None:
    """In a checkout it could be, and would be there twice; installed it could not."""
    for folder in ("shared/millrace", "tests", "scripts", *FOLDERS):
        assert breaches(ROOT / folder, {*FOLDERS}, root=ROOT) == []


def test_generators_import_only_the_core_and_the_contracts_of_apps() -> None:
    """An event type is written once, by the app that reads it; its generator sends that."""
    others = {"tests", *map(installed, ("benchmarks", "recipes", *apps()))}
    contracts = tuple(f"imports {installed(app)}.contracts." for app in apps())
    found = breaches(ROOT / "generators", others, root=ROOT)
    assert [breach for breach in found if not breach.partition(" ")[2].startswith(contracts)] == []


def test_apps_do_not_import_each_other_nor_the_generators() -> None:
    found = []
    for app in apps():
        others = {"generators", "benchmarks", "recipes", *apps()} - {app}
        found += breaches(ROOT / "apps" / app, {"tests", *map(installed, others)}, root=ROOT)
    assert found == []


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        ("runtime", {"millrace.cli", "millrace.console", "millrace.demo", "millrace.testing"}),
        ("kafka", {"millrace.runtime", "millrace.cli", "millrace.testing"}),
        ("local", {"millrace.runtime", "millrace.kafka", "millrace.host", "millrace.cli"}),
        (
            "topology",
            {
                "millrace.runtime",
                "millrace.host.spark",
                "millrace.host.spark_streams",
                "millrace.host.spark_processed",
                "millrace.connectors",
                "millrace.testing",
            },
        ),
        ("state", {"millrace.host", "millrace.runtime", "millrace.topology"}),
        ("time", {"millrace.host", "millrace.runtime", "millrace.state", "millrace.topology"}),
        (
            "parts",
            {
                f"millrace.{name}"
                for name in (
                    "host",
                    "runtime",
                    "process",
                    "state",
                    "windows",
                    "operators",
                    "joins",
                    "patterns",
                    "topology",
                    "testing",
                )
            },
        ),
        ("windows", {"millrace.host", "millrace.runtime", "millrace.joins", "millrace.patterns"}),
        ("testing", {"millrace.cli"}),
        (
            "models",
            {
                f"millrace.{name}"
                for name in ("host", "runtime", "process", "state", "topology", "cli", "testing")
            },
        ),
        ("operations", {"millrace.cli", "millrace.host", "millrace.connectors", "millrace.testing"}),
    ],
)
def test_parts_of_the_core_import_only_what_is_below_them(part: str, forbidden: set[str]) -> None:
    assert breaches(CORE / part, forbidden, root=ROOT / "shared") == []


def packages() -> dict[str, Path]:
    """Every module of the project by its name."""
    found = {}
    roots = {"millrace": ROOT / "shared" / "millrace"}
    roots |= {installed(name): ROOT / name for name in ("generators", "benchmarks", "recipes")}
    roots |= {installed(name): ROOT / "apps" / name for name in apps()}
    for top, folder in roots.items():
        for path in sources(folder):
            parts = (*top.split("."), *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def cycles(modules: dict[str, set[str]]) -> list[list[str]]:
    """Return the modules that import each other, also inside of functions and for types only."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        open_.append(name)
        for other in sorted(modules[name]):
            if other not in numbers:
                visit(other)
            if other in open_:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == numbers[name]:
            circle = open_[open_.index(name) :]
            del open_[open_.index(name) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in sorted(modules):
        if name not in numbers:
            visit(name)
    return found


def test_no_modules_import_each_other() -> None:
    modules = packages()
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        text = path.read_text(encoding="utf-8")
        package = tuple(name.split(".")) if path.name == "__init__.py" else tuple(name.split(".")[:-1])
        named = {found for found, _ in imports(text, package)}
        wanted = {one if one in modules else one.rpartition(".")[0] for one in named}
        graph[name] = {one for one in wanted if one in modules and one != name}
    assert len(graph) > 500
    assert cycles(graph) == []


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
        ({"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": {"b"}, "e": {"f"}, "f": {"e"}},
         [["b", "c", "d"], ["e", "f"]]),
    ],
)  # fmt: skip
def test_circles_are_found(modules: dict[str, set[str]], found: list[list[str]]) -> None:
    assert cycles(modules) == found


def test_only_the_engine_side_of_the_core_imports_pyspark() -> None:
    found = [
        breach
        for breach in breaches(CORE, {"pyspark", "delta"}, root=CORE)
        if not any(fnmatch(breach.partition(":")[0], allowed) for allowed in SPARK_ALLOWED)
    ]
    assert found == []


def test_apps_send_and_write_reports_only_by_what_operators_share() -> None:
    assert breaches(ROOT / "apps", {"confluent_kafka", "getpass"}, root=ROOT) == []


def test_generators_do_not_import_pyspark() -> None:
    assert breaches(ROOT / "generators", {"pyspark", "delta"}, root=ROOT) == []


def test_modules_of_the_command_line_are_cheap_to_import() -> None:
    assert breaches(CORE / "cli", SLOW, root=CORE, at_import=True) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import millrace_apps.fraud", True),
        ("from millrace_apps import fraud", True),
        ("def f():\n    from millrace_apps.fraud.topology import build", True),
        ("import millrace_appstore", False),
        ("apps = 1", False),
    ],
)
def test_breach_is_found_wherever_the_import_stands(tmp_path: Path, source: str, found: bool) -> None:
    (tmp_path / "module.py").write_text(source)
    assert bool(breaches(tmp_path, {"millrace_apps"}, root=tmp_path)) is found


def test_relative_import_of_another_app_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "apps" / "one"
    folder.mkdir(parents=True)
    (folder / "module.py").write_text("from ..two import thing\nfrom . import own\n")
    assert breaches(folder, {"apps.two"}, root=tmp_path) == ["apps/one/module.py:1 imports apps.two.thing"]


def test_import_inside_a_function_is_not_at_import_time(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("def f():\n    import pyspark\n")
    (tmp_path / "early.py").write_text("import pyspark\n")
    assert breaches(tmp_path, {"pyspark"}, root=tmp_path, at_import=True) == ["early.py:1 imports pyspark"]


# -- rooms of the apps ---------------------------------------------------------------------------------

#: Modules and rooms that the four apps have alike.
ROOMS = {"contracts", "state", "processes", "operations", "dashboard", "evaluation"}
ALIKE = {"app.py", "settings.py", "topology.py", "demo.py", "README.md", "DISCUSSION.md"} | ROOMS
#: Files with several processes: those of one kind that differ in a word or two each, and comparisons.
SEVERAL = {
    "apps/fraud/processes/cards.py": 2,
    "apps/fraud/processes/entity_stages.py": 6,
    "apps/fraud/handbook/process.py": 2,
    "apps/clickstream/processes/snowplow.py": 2,
}


@pytest.mark.parametrize("app", ["clickstream", "fraud", "iot_maintenance", "ridesharing"])
def test_an_app_has_the_rooms_of_all_apps(app: str) -> None:
    assert ALIKE - {path.name for path in (ROOT / "apps" / app).iterdir()} == set()


def processes_in(source: str) -> list[str]:
    """Return the processes that a module defines."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return [node.name for node in classes if any("KeyedProcess" in ast.unparse(base) for base in node.bases)]


def test_processes_stand_in_files_of_their_own_and_never_among_state_or_contracts() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): processes_in(path.read_text("utf-8"))
        for path in sources(ROOT / "apps")
    }
    assert {file: len(names) for file, names in found.items() if len(names) > 1} == SEVERAL
    elsewhere = ("/state/", "/contracts/", "/operations/", "/dashboard/")
    assert [file for file, names in found.items() if names and any(room in file for room in elsewhere)] == []
