"""A registry's database as it lies there: every version with its aliases; nothing where it cannot be read."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.dashboard.common_panels import models
from millrace.dashboard.data import AppData
from millrace.dashboard.views import Table
from millrace.models.listing import Registered, listed
from millrace.observing.figures import ModelFigures, write_figures
from millrace.runtime.settings import AppSettings
from tests.cases import case_count
from tests.unit.millrace.dashboard.cases import Clock
from tests.unit.millrace.dashboard.test_overview import APP
from tests.unit.millrace.observing.cases import NOW, figures


def database(root: Path) -> sqlite3.Connection:
    """Make what the registry's library makes, as far as it matters."""
    (root / "models").mkdir(parents=True)
    made = sqlite3.connect(root / "models" / "mlflow.db")
    made.executescript(
        "CREATE TABLE model_versions (workspace TEXT, name TEXT, version INTEGER, creation_time BIGINT, "
        "current_stage TEXT);"
        "CREATE TABLE registered_model_aliases (workspace TEXT, name TEXT, alias TEXT, version INTEGER);"
        "CREATE TABLE model_version_tags (workspace TEXT, name TEXT, version INTEGER, key TEXT, value TEXT);"
    )
    return made


def put(into: sqlite3.Connection, one: Registered, stage: str = "None", **tags: Any) -> None:
    where = ("default", one.model, one.version)
    into.execute("INSERT INTO model_versions VALUES (?, ?, ?, ?, ?)", (*where, one.created_ms, stage))
    for alias in one.aliases:
        into.execute(
            "INSERT INTO registered_model_aliases VALUES (?, ?, ?, ?)", (where[0], where[1], alias, where[2])
        )
    for key, value in {"sha256": "0", **tags}.items():
        if value is not None:
            into.execute("INSERT INTO model_version_tags VALUES (?, ?, ?, ?, ?)", (*where, key, str(value)))


@pytest.mark.parametrize("seed", range(case_count(60)))
def test_every_version_is_listed_with_its_aliases_by_model_and_the_newest_first(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    made = database(tmp_path)
    expected: list[Registered] = []
    for model in ("a model's", "b"):
        count = chance.randrange(5)
        owner = {alias: chance.randrange(1, count + 1) for alias in ("champion", "x") if count}
        for version in range(1, count + 1):
            aliases = tuple(sorted(alias for alias, of in owner.items() if of == version))
            until, rows = chance.choice([None, chance.randrange(NOW)]), chance.choice([None, 12_345])
            one = Registered(model, version, aliases, NOW - version, until, rows)
            gone = chance.random() < 0.2
            put(made, one, "Deleted_Internal" if gone else "None", trained_until_ms=until, rows=rows)
            expected += [] if gone else [one]
    made.commit()
    made.close()
    assert listed(tmp_path) == sorted(expected, key=lambda one: (one.model, -one.version))


def test_what_cannot_be_read_is_no_registry(tmp_path: Path) -> None:
    assert listed(tmp_path) == []
    made = database(tmp_path)
    put(made, Registered("m", 1, (), 5, None, None), rows="many", trained_until_ms="1e3")
    made.commit()
    assert [(one.trained_until_ms, one.rows) for one in listed(tmp_path)] == [(1_000, None)]
    made.isolation_level = None
    made.execute("BEGIN EXCLUSIVE")
    assert listed(tmp_path) == [], "somebody writes to it"
    made.execute("DROP TABLE model_version_tags")
    made.execute("COMMIT")
    made.close()
    assert listed(tmp_path) == []
    (tmp_path / "models" / "mlflow.db").write_bytes(b"no database" * 100)
    assert listed(tmp_path) == []


def test_it_takes_no_library_of_the_registry() -> None:
    code = (
        "import sys; import millrace.models.listing; "
        "print(sorted({'mlflow', 'sqlalchemy', 'numpy', 'pandas', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_shows_what_the_job_has_and_behind_it_the_rest_of_the_registry(tmp_path: Path) -> None:
    data = AppData(APP, AppSettings(), tmp_path, Clock())
    assert models(data) is None
    made = database(tmp_path)
    for version, aliases in ((1, ()), (2, ()), (3, ("champion",)), (4, ("challenger",))):
        put(made, Registered("risk", version, aliases, NOW - version, None, None), rows=100 * version)
    made.commit()
    made.close()
    has = {"risk/champion": ModelFigures("2", NOW - 10, NOW - 7), "other/champion": ModelFigures("9", 1, 2)}
    write_figures(tmp_path, figures(tmp_path, models=has))
    shown = models(data)
    assert isinstance(shown, Table)
    assert shown.rows == [
        ["other", "champion", "9", 1, 2, None, ""],
        ["risk", "champion", "2", NOW - 10, NOW - 7, 200, "there it is without alias"],
        ["risk", "", "4", None, NOW - 4, 400, "challenger there, and the job does not have it"],
        ["risk", "", "3", None, NOW - 3, 300, "champion there, and the job does not have it"],
        ["risk", "", "1", None, NOW - 1, 100, ""],
    ]
