"""Whether new code fits a checkpoint, told before anything is stopped; how a job was started."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import UserError
from millrace.observing.jobs import JobRecord
from millrace.runtime.apps import Topic, Topics, with_output_suffix
from millrace.runtime.contract import CONTRACT_FILE, EARLIER, check_contract, write_contract
from millrace.runtime.settings import load_settings
from millrace.upgrading.fitting import contract_of_app, fit, fit_of
from millrace.upgrading.started import Started, fresh, started_by
from millrace.upgrading.trial import TRIAL_FILE, read_trial, start_trial, trial_root
from millrace.upgrading.upgrade import Upgrade
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.settings import FraudSettings

JOB = JobRecord("fraud", "/data/fraud", 7, 0.0, 0, "here")


def settings(root: Path, *more: str) -> FraudSettings:
    return load_settings(FraudSettings, app="fraud", overrides=[f"storage.root={root}", *more], env={})


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with the contract of fraud as it is now."""
    check_contract(tmp_path, contract_of_app(fraud, settings(tmp_path), tmp_path))
    return tmp_path


def contract(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / CONTRACT_FILE).read_text())
    return found


def test_the_same_code_goes_on_from_the_checkpoint_as_it_is(kept: Path) -> None:
    before = (kept / CONTRACT_FILE).read_bytes()
    found = fit_of(fraud, settings(kept), kept, {})
    assert (found.how, found.changes, found.why) == ("as it is", [], "")
    assert (kept / CONTRACT_FILE).read_bytes() == before


def test_another_version_of_a_process_takes_a_savepoint(kept: Path) -> None:
    old = contract(kept)
    name = old["links"][0]["process"]
    old["links"][0]["version"] = 0
    write_contract(kept, old)
    found = fit_of(fraud, settings(kept), kept, {})
    assert found.how == "from a savepoint"
    assert contract(kept) == old
    assert [one for one in found.changes if one.startswith(f"{name}: version 0 becomes")]


def test_states_that_come_and_go_are_told_and_fit(kept: Path) -> None:
    old = contract(kept)
    first, *_ = old["states"]
    old["states"]["was"] = old["states"].pop(first)
    found = fit(old, contract_of_app(fraud, settings(kept), kept), kept)
    assert found.how == "as it is"
    assert f"state {first} is new" in found.changes
    assert "state was goes: what it kept is dropped as keys are touched" in found.changes


@pytest.mark.parametrize("change", ["key_groups", "key", "hash"])
def test_what_no_start_takes_is_refused_with_what_differs(kept: Path, change: str) -> None:
    old = contract(kept)
    old["links"][0][change] = "another"
    found = fit(old, contract_of_app(fraud, settings(kept), kept), kept)
    assert found.how == "refused"
    assert change in found.why
    assert str(kept) in found.why


def test_settings_that_make_it_another_query_are_refused(kept: Path) -> None:
    found = fit_of(fraud, settings(kept, "spark.key_groups=32"), kept, {})
    assert found.how == "refused"
    assert "key_groups was 64, is now 32" in found.why


def test_states_that_were_kept_by_versions_before_the_last_count_too(kept: Path) -> None:
    now = contract_of_app(fraud, settings(kept), kept)
    old = copy.deepcopy(contract(kept))
    name = next(iter(now["states"]))
    other = copy.deepcopy(old["states"])
    other[name] = {**other[name], "kind": "another"}
    assert fit({**old, EARLIER: [other]}, now, kept).how == "refused"


def test_a_folder_without_a_contract_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in fit_of(fraud, settings(tmp_path), tmp_path, {}).why


@pytest.mark.parametrize(
    ("words", "launcher", "arguments"),
    [
        (
            ["/v/python", "-m", "millrace", "run", "fraud", "-q"],
            ("/v/python", "-m", "millrace"),
            ("fraud", "-q"),
        ),
        (["/v/python", "/v/millrace", "run", "-q", "fraud"], ("/v/python", "/v/millrace"), ("-q", "fraud")),
    ],
)
def test_a_job_is_started_again_by_the_words_and_surroundings_that_it_had(
    words: list[str], launcher: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    env = {"KAFKA_BOOTSTRAP_SERVERS": "b:1", "VIRTUAL_ENV": "/v", "MILLRACE_HOME": "/h"}
    found = started_by(words, Path("/work"), env, JOB)
    assert (found.launcher, found.arguments, found.folder, found.env) == (
        launcher,
        arguments,
        Path("/work"),
        env,
    )
    assert found.command == words
    new = found.by_this_version().with_settings(["a.b=1"])
    assert new.command == [sys.executable, "-m", "millrace", "run", *arguments, "--set=a.b=1"]
    assert (new.env["MILLRACE_HOME"], new.env["KAFKA_BOOTSTRAP_SERVERS"]) == ("/h", "b:1")
    assert new.env.get("VIRTUAL_ENV") != "/v"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/v/python", "-m", "millrace", "demo", "fraud"], "no `millrace run`"),
        (["/v/python", "notebook.py"], "no `millrace run`"),
        (["/v/python", "-m", "millrace", "run", "--until-end", "fraud"], "until the end"),
    ],
)
def test_what_is_no_job_of_its_own_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        started_by(words, Path("/"), {}, JOB)


def test_outputs_of_a_second_version_have_other_names_and_inputs_do_not() -> None:
    found = with_output_suffix(
        Topics((Topic("in"), Topic("control")), (Topic("out", 3),), "control"), ".green"
    )
    assert [t.name for t in found.reads] == ["in", "control"]
    assert [(t.name, t.partitions) for t in found.writes] == [("out.green", 3)]
    assert found.control == "control"


def test_a_second_version_is_refused_before_anything_is_touched(kept: Path) -> None:
    root, wrong = kept, settings(kept, "spark.key_groups=32", "kafka.bootstrap=b:1")
    before = sorted(root.rglob("*"))
    plan = Upgrade(fraud, wrong, root, None, None, fresh("fraud", [], None))
    said: list[str] = []
    green = trial_root(root)
    assert start_trial(plan, green, ".green", [], said.append).did == "refused"
    assert plan.run(said.append).did == "refused"
    assert (said, sorted(root.rglob("*")), green.exists()) == ([], before, False)


def test_a_folder_that_is_in_use_is_left_alone(kept: Path) -> None:
    green = kept / "green"
    green.mkdir()
    (green / "mine").write_text("x")
    plan = Upgrade(fraud, settings(kept), kept, None, None, Started(("false",), (), kept, {}))
    with pytest.raises(UserError, match="is not empty"):
        start_trial(plan, green, ".green", [], print)
    assert [path.name for path in green.iterdir()] == ["mine"]
    with pytest.raises(UserError, match="no second version"):
        read_trial(green)
    (green / TRIAL_FILE).write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_trial(green)
