"""What commands and demos of apps share: settings as asked for, tables of a run, checks."""

from __future__ import annotations

import doctest
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from millrace.console import report
from millrace.console.report import equal, same
from millrace.errors import UserError
from millrace.runtime import commands
from millrace.runtime.commands import app_table, command_settings
from millrace.runtime.demo_settings import publish_settings
from millrace.runtime.settings import AppSettings


def test_settings_of_a_command_have_what_it_was_given_and_overrides_win(tmp_path: Path) -> None:
    found = command_settings(
        AppSettings, "x", bootstrap="b:1", root=tmp_path, overrides=["kafka.bootstrap=c:2", "log_level=DEBUG"]
    )
    assert (found.kafka.bootstrap, found.storage.local_root) == ("c:2", tmp_path)
    assert found.log_level == "DEBUG"
    with pytest.raises(UserError, match="nothing"):
        command_settings(AppSettings, "x", overrides=["nothing=1"])


def test_a_table_of_an_app_is_read_and_none_is_none(tmp_path: Path) -> None:
    assert app_table(tmp_path, "alerts") is None
    write_deltalake(str(tmp_path / "tables" / "alerts"), pa.table({"a": [1, 2], "b": ["x", "y"]}))
    found = app_table(str(tmp_path), "alerts", ["b"])
    assert found is not None
    assert sorted(found["b"].to_pylist()) == ["x", "y"]
    assert found.column_names == ["b"]


def test_checks_say_what_was_wanted_and_found() -> None:
    assert equal("n", 1_000, 1_000).ok
    assert not equal("n", 1_000, 999).ok
    assert (same("s", {1}, {1}).ok, same("s", {1, 2}, {2, 3, 4}).found) == (True, "3, 3 differ")


def test_examples_run_as_they_stand() -> None:
    for module in (commands, report):
        found = doctest.testmod(module)
        assert (found.failed, found.attempted > 0) == (0, True)


def test_commands_reach_the_broker_of_a_demo_that_runs_in_the_folder_they_are_given(tmp_path: Path) -> None:
    with publish_settings(tmp_path, ["kafka.bootstrap=demo:1", "stream.trigger_interval=7 s"]):
        inside = command_settings(AppSettings, "x", root=tmp_path)
        named = command_settings(AppSettings, "x", root=tmp_path, bootstrap="other:2")
        elsewhere = command_settings(AppSettings, "x")
    after = command_settings(AppSettings, "x", root=tmp_path)
    found = [s.kafka.bootstrap for s in (inside, named, elsewhere, after)]
    assert found == ["demo:1", "other:2", after.kafka.bootstrap, after.kafka.bootstrap]
    assert inside.stream.trigger_interval.total_seconds() == 7
    assert inside.storage.local_root == tmp_path
