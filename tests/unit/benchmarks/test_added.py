"""Benchmarks of other packages: by entry point, beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace_apps.benchmarks.cli import GROUP, app
from tests.installed import install

OTHERS = {
    "rows": "added_benchmark:app",
    "drain": "added_benchmark:app",
    "wrong": "added_benchmark:rows",
    "needy": "no_such_package_anywhere:app",
}
MODULE = """
import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: millrace bench rows --rows 5")
def rows(rows: int = 1) -> None:
    \"\"\"Measure rows.\"\"\"
    typer.echo(f"{rows} rows in no time")
"""


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "added_benchmark.py").write_text(MODULE)
    install(tmp_path, "rows-bench", GROUP, OTHERS)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_benchmark_of_another_package_runs_and_is_listed() -> None:
    done = CliRunner().invoke(app, ["rows", "--rows", "5"])
    assert (done.exit_code, done.output) == (0, "5 rows in no time\n")
    assert "Measure rows." in CliRunner().invoke(app, ["rows", "--help"]).output


def test_ours_keep_their_names() -> None:
    group = typer.main.get_command(app)
    with typer.Context(group) as context:
        names = group.list_commands(context)  # type: ignore[attr-defined]
        assert names.count("drain") == 1
        assert names[-3:] == ["needy", "rows", "wrong"]
        assert "events" in {option.name for option in group.get_command(context, "drain").params}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "said"), [("wrong", "is no Typer app"), ("needy", "needs the package")])
def test_what_cannot_be_loaded_is_named(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        CliRunner().invoke(app, [name], catch_exceptions=False)
