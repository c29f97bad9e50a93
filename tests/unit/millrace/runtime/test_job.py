"""Whether a job may go on from what is there, before anything is started."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.fraud.settings import FraudSettings
from millrace.errors import UserError
from millrace.runtime.apps import load_app
from millrace.runtime.job import DRAINED_FILE, Job
from millrace.runtime.settings import load_settings


def job(folder: Path, *, until_end: bool, drain: bool) -> Job:
    sets = ["kafka.bootstrap=localhost:1", f"storage.root={folder}"]
    settings = load_settings(FraudSettings, app="fraud", overrides=sets)
    return Job(load_app("fraud"), settings, until_end=until_end, drain=drain)


@pytest.mark.parametrize(("until_end", "drain"), [(True, True), (True, False), (False, False)])
def test_a_drained_checkpoint_is_refused(tmp_path: Path, until_end: bool, drain: bool) -> None:
    (tmp_path / DRAINED_FILE).write_text("drained\n")
    with pytest.raises(UserError, match="has been drained"):
        job(tmp_path, until_end=until_end, drain=drain).run()


@pytest.mark.parametrize(
    ("until_end", "drain", "goes_on"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_drain_that_was_cut_off_is_finished_by_running_it_again(
    tmp_path: Path, until_end: bool, drain: bool, goes_on: bool
) -> None:
    (tmp_path / DRAINED_FILE).write_text("draining\n")
    held = nullcontext() if goes_on else pytest.raises(UserError, match="has been drained")
    with held:
        job(tmp_path, until_end=until_end, drain=drain)._refuse_drained()


@pytest.mark.parametrize(
    ("message", "available", "active", "working"),
    [
        ("Initializing sources", False, True, True),
        ("Getting offsets from KafkaV2[Subscribe[t]]", False, True, False),
        ("Waiting for data to arrive", False, False, False),
        ("Getting offsets from KafkaV2[Subscribe[t]]", True, True, True),
        ("Processing new data", True, True, True),
        ("No new data but cleaning up state", False, True, True),
    ],
)
def test_asking_the_broker_for_its_offsets_is_not_work(
    tmp_path: Path, message: str, available: bool, active: bool, working: bool
) -> None:
    running = job(tmp_path, until_end=False, drain=False)
    assert not running.working(), "it was not started"
    status = {"message": message, "isDataAvailable": available, "isTriggerActive": active}
    query: Any = SimpleNamespace(isActive=True, status=status)
    running._query = query
    assert running.working() is working
    query.isActive = False
    assert not running.working()
