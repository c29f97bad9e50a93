"""Forgetting a person in the tables: what is deleted, and what is found to be left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.checkpoints.positions import WAITING
from millrace.connectors.merging import _keep
from millrace.errors import UserError
from millrace.privacy.erasure import count_left
from millrace_apps.clickstream.contracts.events import Forget
from millrace_apps.clickstream.operations import forget
from millrace_apps.clickstream.operations.forget import (
    app_settings,
    delete_rows,
    left_rows,
    requests,
    run,
    subject_of,
)
from millrace_apps.clickstream.settings import ClickstreamSettings
from tests.unit.millrace.operations.cases import MockBroker, records_of


def events(*late: dict[str, Any]) -> dict[str, list[Any]]:
    """Late events as a table has them."""
    return {"_event_id": [f"e{n}" for n in range(len(late))], "event": [json.dumps(one) for one in late]}


@pytest.fixture
def settings(tmp_path: Path) -> ClickstreamSettings:
    tables = {
        "sessions": {"visitor_id": ["v1", "v2", "v3"], "user_id": ["ann", None, "bob"], "end_ms": [1, 2, 3]},
        "identities": {"visitor_id": ["v1", "v2", "v3"], "user_id": ["ann", "ann", "bob"]},
        "abandonments": {"visitor_id": ["v1", "v3"], "user_id": ["ann", None], "cart_id": ["c1", "c2"]},
        "profiles": {"person": ["u:ann", "v:v2", "u:bob"], "views_1d": [1, 2, 3]},
        "dead_letters": {
            "_event_id": ["l1", "l2", "l3"],
            "key": ["2:v1", "2:v3", None],
            "value": [b"{v1}", b"{v3}", b'{"user_id":"ann"'],
        },
        "late": events({"visitor_id": "v2", "user_id": None}, {"visitor_id": "v3", "user_id": "bob"}),
        "late_entities": events(
            {"type": "does", "person": "u:ann", "visitor": "v9"},
            {"type": "change", "cart_id": "c1", "person": "v:v8", "visitor": "v8"},
        ),
        "late_results": events({"type": "shopping", "person": "u:bob", "visitor": "v3"}),
        "late_acts": {"event": [{"visitor": "v1", "person": "v:v1"}]},  # of an earlier version
    }
    for name, columns in tables.items():
        write_deltalake(str(tmp_path / "tables" / name), pa.table(columns))
    return app_settings(None, [f"storage.root={tmp_path}"])


def test_a_persons_browsers_and_carts_are_found(settings: ClickstreamSettings) -> None:
    subject = subject_of(settings, "ann")
    assert (subject.visitors, subject.carts) == (("v1", "v2"), ("c1",))
    assert [(one.kind, one.subject) for one in requests(subject, "r", 5)] == [
        ("account", "ann"), ("browser", "v1"), ("browser", "v2"), ("cart", "c1"),
    ]  # fmt: skip


def test_what_merges_have_written_is_found_too(settings: ClickstreamSettings, tmp_path: Path) -> None:
    """A merge writes texts in a form of its own; all tables with a key are merged."""
    for name, source in (
        ("identities", {"visitor_id": ["v3", "v4"], "user_id": ["ann", "ann"]}),
        ("sessions", {"visitor_id": ["v2"], "user_id": ["ann"], "end_ms": [9]}),
    ):
        told = DeltaTable(str(tmp_path / "tables" / name)).merge(
            pa.table(source), "t.visitor_id = s.visitor_id", source_alias="s", target_alias="t"
        )
        told.when_matched_update_all().when_not_matched_insert_all().execute()
    assert subject_of(settings, "ann").visitors == ("v1", "v2", "v3", "v4")
    sets = [f"storage.root={tmp_path}"]
    assert run("ann", bootstrap=None, at=None, sets=sets, tables_only=True, out=None) == 0
    kept = DeltaTable(str(tmp_path / "tables" / "identities")).to_pyarrow_table()
    assert kept.num_rows == 0


def test_its_rows_go_and_all_others_stay(settings: ClickstreamSettings) -> None:
    subject = subject_of(settings, "ann")
    assert sum(left_rows(settings, subject).values()) == 13
    gone = delete_rows(settings, subject)
    assert {name: n for name, n in gone.items() if n} == {
        "sessions": 2,
        "identities": 2,
        "abandonments": 1,
        "profiles": 2,
        "dead_letters": 2,
        "late": 1,
        "late_entities": 2,
        "late_acts": 1,
    }
    assert not any(left_rows(settings, subject).values())
    assert sum(left_rows(settings, subject_of(settings, "bob")).values()) > 4


def test_what_the_deletion_does_not_know_is_found(settings: ClickstreamSettings, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "tables" / "notes"), pa.table({"text": ["seen v1 today", "nothing"]}))
    subject = subject_of(settings, "ann")
    delete_rows(settings, subject)
    assert {name: n for name, n in left_rows(settings, subject).items() if n} == {"notes": 1}


def test_the_command_says_whether_something_is_left(
    settings: ClickstreamSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets, out = [f"storage.root={tmp_path}"], tmp_path / "proof.json"
    (tmp_path / "checkpoint" / "state" / "0").mkdir(parents=True)
    (tmp_path / "savepoints" / "monday").mkdir(parents=True)
    assert run("ann", bootstrap=None, at=None, sets=sets, tables_only=True, out=out) == 0
    told = capsys.readouterr().out
    assert "nothing is left" in told
    assert "until later: topic clickstream.forget: records" in told
    assert "ann" not in out.read_text()
    proof = json.loads(out.read_text())
    assert (proof["clean"], proof["app"], proof["deleted"]["sessions"]) == (True, "clickstream", 2)
    stores = {(one["kind"], one["name"]) for one in proof["stores"]}
    assert stores >= {("checkpoint", "checkpoint"), ("savepoint", "monday"), ("table", "dead_letters")}
    topics = ("clicks", "customers", "consents", "refunds", "erasures", "forget", "offers", "dead-letters")
    assert stores >= {("topic", f"clickstream.{name}") for name in topics}
    assert all(one["until"] or one["ends"] for one in proof["stores"])
    write_deltalake(str(tmp_path / "tables" / "notes"), pa.table({"text": ["bob"]}))
    assert run("bob", bootstrap=None, at=None, sets=sets, tables_only=True, out=None) == 1


def test_requests_stand_in_the_topic_under_their_subjects(
    settings: ClickstreamSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_apps.clickstream.operations.forget._PATIENCE_S", 0.0)
    broker, out = MockBroker(), tmp_path / "proofs" / "proof.json"
    topic = broker.topic()
    sets = [f"storage.root={tmp_path}", f"topics.forget={topic}"]
    run("ann", bootstrap=broker.bootstrap, at="1970-01-01T00:00:05", sets=sets, tables_only=False, out=out,
        by="eva")  # fmt: skip
    sent = [r for n in range(4) for r in records_of(broker.bootstrap, topic, n)]
    asked = {msgspec.json.decode(value or b"", type=Forget) for _, value in sent}
    assert {(one.kind, one.subject) for one in asked} == {
        ("account", "ann"), ("browser", "v1"), ("browser", "v2"), ("cart", "c1"),
    }  # fmt: skip
    assert {one.event_time_ms for one in asked} == {5_000}
    assert all(key == msgspec.json.decode(value or b"")["subject"].encode() for key, value in sent)
    assert json.loads(out.read_text())["by"] == "eva"
    broker.stop()


def test_without_a_broker_the_state_cannot_be_asked(settings: ClickstreamSettings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no broker is named"):
        run("ann", bootstrap=None, at=None, sets=[f"storage.root={tmp_path}"], tables_only=False, out=None)
    with pytest.raises(UserError, match="no time"):
        run("ann", bootstrap=None, at="soon", sets=[f"storage.root={tmp_path}"], tables_only=True, out=None)


def test_of_user_42_no_price_item_or_other_number_is_taken_for_the_person(tmp_path: Path) -> None:
    tables = {
        "sessions": {"visitor_id": ["v1", "42", "v3"], "user_id": ["42", "7", "142"], "views": [42, 42, 42]},
        "dead_letters": {
            "_event_id": ["a", "b", "c", "d", "e"],
            "key": ["2:v1", "2:v3", "2:v3", None, None],
            "value": [
                b'{"user_id":42,"price":1}',
                b'{"user_id":"142","price":42}',
                b'{"user_id":"7","amount":19.42,"item_id":"42"}',
                b'{"user_id":"42"',
                b'{"quantity":42',
            ],
        },
        "boards": {"item_id": ["42", "43"], "views": [42, 1]},
        "notes": {"text": ["42 pieces of it", "costs 42"]},
    }
    for name, columns in tables.items():
        write_deltalake(str(tmp_path / "tables" / name), pa.table(columns))
    sets, out = [f"storage.root={tmp_path}"], tmp_path / "proof.json"
    assert run("42", bootstrap=None, at="1970-01-01T00:00:05", sets=sets, tables_only=True, out=out) == 0
    proof = json.loads(out.read_text())
    assert {name: n for name, n in proof["deleted"].items() if n} == {"sessions": 1, "dead_letters": 2}
    assert not any(proof["left"].values())  # another's browser is called 42 as well
    assert DeltaTable(str(tmp_path / "tables" / "dead_letters")).to_pyarrow_table().num_rows == 3


def test_rows_that_wait_for_their_table_are_left(settings: ClickstreamSettings, tmp_path: Path) -> None:
    folder = tmp_path / "tables" / "sessions" / WAITING
    folder.mkdir()
    waits = pa.table({"visitor_id": ["v2", "v3"], "user_id": [None, "bob"]})
    _keep(folder / "000000000004.arrow", waits, "clickstream:0:sessions", 4)
    subject, sets = subject_of(settings, "ann"), [f"storage.root={tmp_path}"]
    out = tmp_path / "proof.json"
    assert run("ann", bootstrap=None, at=None, sets=sets, tables_only=True, out=out) == 1
    proof = json.loads(out.read_text())
    assert {name: n for name, n in proof["left"].items() if n} == {"sessions": 1}
    assert ("table", "sessions", "the next run, or the job that runs") in {
        (one["kind"], one["name"], one["ends"]) for one in proof["stores"]
    }
    assert left_rows(settings, subject)["sessions"] == 1


def test_rows_that_come_into_their_table_while_it_is_looked_through_are_left(
    settings: ClickstreamSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tables" / "sessions" / WAITING
    folder.mkdir()
    waits = pa.table({"visitor_id": ["v2"], "user_id": pa.array([None], pa.string())})
    _keep(folder / "000000000004.arrow", waits, "clickstream:0:sessions", 4)
    subject = subject_of(settings, "ann")
    delete_rows(settings, subject)

    def and_then(path: Path, names: Any) -> int:
        found = count_left(path, names)
        if path.name == "sessions":
            (folder / "000000000004.arrow").unlink()
        return found

    monkeypatch.setattr(forget, "count_left", and_then)
    assert left_rows(settings, subject)["sessions"] == 1


def test_browsers_that_the_tables_do_not_know_any_more_can_be_named(
    settings: ClickstreamSettings, tmp_path: Path
) -> None:
    sets = [f"storage.root={tmp_path}"]
    assert run("ann", bootstrap=None, at=None, sets=sets, tables_only=True, out=None) == 0
    write_deltalake(
        str(tmp_path / "tables" / "sessions"),
        pa.table({"visitor_id": ["v1"], "user_id": pa.array([None], pa.string()), "end_ms": [9]}),
        mode="append",
    )
    out = tmp_path / "proof.json"
    assert run("ann", bootstrap=None, at=None, sets=sets, tables_only=True, out=out, visitors=["v1"],
               vacuumed=True) == 0  # fmt: skip
    proof = json.loads(out.read_text())
    assert proof["deleted"]["sessions"] == 1
    assert not [one for one in proof["stores"] if one["kind"] == "table"]
