"""What a demo tells the dashboard, and that the dashboard takes it while the demo runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace import demo
from millrace.dashboard.data import find_root
from millrace.dashboard.serve import open_page
from millrace.errors import MillraceError
from millrace.local.home import demo_path
from millrace.runtime.demo_settings import ANNOUNCED_FILE, publish_settings, published_settings
from millrace.runtime.settings import AppSettings, StorageSettings
from tests.unit.millrace.dashboard.cases import Clock, shop

TOLD = ["kafka.bootstrap=127.0.0.1:9", "topics.alerts=alerts.demo-1"]


def test_settings_are_told_while_the_block_runs_and_no_longer(tmp_path: Path) -> None:
    with publish_settings(tmp_path / "demo", TOLD):
        assert published_settings(tmp_path / "demo") == tuple(TOLD)

    def fail() -> None:
        with publish_settings(tmp_path / "demo", TOLD):
            raise MillraceError("the query failed")

    with pytest.raises(MillraceError):
        fail()
    assert published_settings(tmp_path / "demo") == ()
    assert list((tmp_path / "demo").iterdir()) == []


@pytest.mark.parametrize("text", ["", "{half", '{"a": 1}', "[1, 2]", "null"])
def test_a_file_that_is_damaged_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ANNOUNCED_FILE).write_text(text)
    assert published_settings(tmp_path) == ()


def test_a_demo_tells_its_broker_and_its_topics_and_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    seen: list[tuple[str, ...]] = []

    @contextlib.contextmanager
    def broker(bootstrap: str | None, folder: Path) -> Iterator[Any]:
        yield "127.0.0.1:9", lambda: None, ""

    def stream(app: Any, spec: Any, run: Any, *_: Any) -> None:
        seen.append(published_settings(run.folder))

    monkeypatch.setattr(demo, "_broker", broker)
    monkeypatch.setattr(demo, "_stream", stream)
    spec: Any = SimpleNamespace(
        simulated=False,
        settings=lambda run_id: ["stream.out_of_orderness=1s"],
        alert_topic=lambda settings: "alerts",
        alert_line=None,
        checks=lambda run, ledger, ids: [],
        read_ledger=lambda path: None,
    )
    view: Any = None
    demo.run_demo(shop(), spec, demo.DemoOptions(overrides=["kafka.options.sasl.password=x"]), view)
    assert seen == [
        ("kafka.bootstrap=127.0.0.1:9", "stream.out_of_orderness=1s")
    ]  # and no secret of the user
    assert published_settings(demo_path("shop")) == ()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def make(overrides: Sequence[str] = ()) -> Any:
        return open_page("fraud", root=tmp_path, overrides=overrides, clock=Clock())

    return make


def test_the_dashboard_takes_what_a_demo_tells_and_lets_it_go(page: Any, tmp_path: Path) -> None:
    live = page()
    live.refresh()
    assert live.data.broker is None
    with publish_settings(tmp_path, TOLD):
        assert live.describe()["broker"] == "127.0.0.1:9"
        assert live.data.settings.topics.alerts == "alerts.demo-1"
    assert live.describe()["broker"] is None


def test_what_the_user_says_wins_over_a_demo(page: Any, tmp_path: Path) -> None:
    live = page(["kafka.bootstrap=other:9092"])
    with publish_settings(tmp_path, TOLD):
        assert live.describe()["broker"] == "other:9092"


def test_a_demo_of_another_version_is_not_understood_and_harms_nothing(page: Any, tmp_path: Path) -> None:
    live = page()
    with publish_settings(tmp_path, ["no.such.setting=1"]):
        live.refresh()
        assert live.data.broker is None


def test_a_demo_that_begins_is_found_before_its_first_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "demo" / "shop"
    settings = AppSettings(storage=StorageSettings(root=str(tmp_path / "own")))
    with publish_settings(folder, TOLD):
        assert find_root("shop", settings, None) == folder
