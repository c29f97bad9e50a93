"""Card numbers by the app's settings and contracts: by default they become tokens, by a key of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.cli import build
from millrace.contracts.schema import json_schema
from millrace.privacy.keys import TokenKeyError, read_ring
from millrace.privacy.masking import Masker
from millrace.runtime.contract import owned
from millrace.testing import TestDriver
from millrace_apps.fraud.app import app, begin
from millrace_apps.fraud.contracts.events import Decision, Label, Transaction
from millrace_apps.fraud.operations.tokens import key_file, without_numbers
from millrace_apps.fraud.settings import FraudSettings
from tests.unit.apps.fraud.cases import MINUTE, driver, send, transaction

CARD, OTHER, LATE = "4111111111111111", "5500005555555559", "378282246310005"


def settings_in(root: Path, **privacy: object) -> FraudSettings:
    return FraudSettings.model_validate({"storage": {"root": str(root)}, "privacy": privacy})


def masker(settings: FraudSettings) -> Masker | None:
    assert app.masking is not None
    found = app.masking(settings)
    return None if found is None else found.open()  # type: ignore[return-value]


def test_without_a_setting_the_first_start_makes_a_key_and_tells_so(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    told = begin(settings)
    assert told is not None
    assert "keep a copy of" in told
    assert begin(settings) is None
    made = masker(settings)
    assert made is not None
    paid = transaction(0, 12.5, id=CARD, card=CARD, terminal=f"t {CARD[:8]} {CARD[8:]}")
    raw = msgspec.json.encode(paid)
    found = msgspec.json.decode(made.message(raw), type=Transaction)
    assert found.card_id.startswith("card-")
    assert found.terminal_id == f"t {found.card_id}"
    assert found.transaction_id == CARD  # what identifies an event stays
    card, terminal = found.card_id, found.terminal_id
    assert found == msgspec.structs.replace(paid, card_id=card, terminal_id=terminal)


def test_a_label_finds_its_transactions_card_by_the_same_token(tmp_path: Path) -> None:
    made = masker(settings_in(tmp_path))
    assert made is not None
    label = Label("l1", 5, CARD, 4, CARD, "t", is_fraud=True, source="feedback")
    found = msgspec.json.decode(made.message(msgspec.json.encode(label)), type=Label)
    paid = msgspec.json.decode(
        made.message(msgspec.json.encode(transaction(0, 1, card=CARD))), type=Transaction
    )
    assert (found.card_id, found.transaction_id) == (paid.card_id, CARD)


def test_off_leaves_numbers_and_a_file_is_used_where_one_is_named(tmp_path: Path) -> None:
    assert masker(settings_in(tmp_path, tokens="off")) is None
    assert begin(settings_in(tmp_path, tokens="off")) is None
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "key"
    path.write_bytes(b"0" * 32)
    for tokens in ("auto", "file"):
        made = masker(settings_in(tmp_path, tokens=tokens, token_key_file=str(path)))
        assert made is not None
        assert made.text(CARD) == "card-237ee474b94d38c4e6358ec1"
    assert not (tmp_path / "privacy").exists()
    with pytest.raises(ValueError, match="tokens=file needs token_key_file"):
        settings_in(tmp_path, tokens="file")


def test_a_key_that_is_gone_is_not_replaced_by_another(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    begin(settings)
    path = key_file(settings)
    assert path is not None
    path.unlink()
    with pytest.raises(TokenKeyError, match="is gone"):
        begin(settings)


def seen(settings: FraudSettings, number: str, at: int, cards: TestDriver) -> Decision:
    """Send a payment as the stream would take it; return what was decided."""
    made = masker(settings)
    assert made is not None
    raw = made.message(msgspec.json.encode(transaction(at, 10, card=number)))
    send(cards, msgspec.json.decode(raw, type=Transaction))
    decided: Decision = cards.values()[-1]
    return decided


def test_a_cards_history_goes_on_over_a_new_key_and_new_cards_have_tokens_of_it(tmp_path: Path) -> None:
    settings, cards = settings_in(tmp_path), driver()
    first = seen(settings, CARD, 0, cards)
    begun = seen(settings, CARD, MINUTE, cards)
    write_deltalake(
        str(tmp_path / "tables" / "transactions"), pa.table({"card_id": [first.card_id, "card-7"]})
    )
    event = pa.array([{"card_id": Masker(read_ring(tmp_path / "privacy" / "token.keys").token).text(LATE)}])
    write_deltalake(str(tmp_path / "tables" / "late"), pa.table({"event": event}))
    done = CliRunner().invoke(build(), ["fraud", "tokens", "rotate", "--root", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "2 cards keep their tokens" in done.output
    after = seen(settings, CARD, 2 * MINUTE, cards)
    assert (after.card_id, after.purchases_before) == (begun.card_id, 2)
    new = seen(settings, OTHER, 3 * MINUTE, cards)
    ids = [key.id for key in read_ring(tmp_path / "privacy" / "token.keys").keys]
    assert [one.card_id.split("-")[1] for one in (new, after)] == ids
    assert new.purchases_before == 0
    listed = CliRunner().invoke(build(), ["fraud", "tokens", "list", "--root", str(tmp_path)])
    assert listed.output.splitlines() == [f"{ids[0]}    makes tokens", f"{ids[1]}    2 cards keep its tokens"]
    for command in (["tokens", "show"], ["lists", "token"]):
        shown = CliRunner().invoke(build(), ["fraud", *command, CARD, "--root", str(tmp_path)])
        assert shown.output.strip() == after.card_id


def test_a_key_is_not_replaced_under_a_job_that_runs_or_has_not_finished_its_batch(tmp_path: Path) -> None:
    command = ["fraud", "tokens", "rotate", "--root", str(tmp_path)]
    begin(settings_in(tmp_path))
    with owned(tmp_path):
        done = CliRunner().invoke(build(), command)
    assert "in use by" in str(done.exception)
    for name, batches in (("offsets", 2), ("commits", 1)):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
        for batch in range(batches):
            (tmp_path / "checkpoint" / name / str(batch)).write_text("v1\n{}\n{}\n")
    done = CliRunner().invoke(build(), command)
    assert "was not finished" in str(done.exception)


def test_a_card_is_put_on_a_list_by_its_token(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    assert without_numbers(settings, f"card:{CARD}") == f"card:{CARD}"  # there is no key yet
    begin(settings)
    made = masker(settings)
    assert made is not None
    assert without_numbers(settings, "card:4111 1111 1111 1111") == f"card:{made.text(CARD)}"
    assert without_numbers(settings, "device:d-7") == "device:d-7"
    assert without_numbers(settings_in(tmp_path, tokens="off"), CARD) == CARD


def test_contracts_name_the_fields_that_hold_card_numbers() -> None:
    for tp in (app.contracts["transaction.v2"], Label, app.contracts["authorisation.v1"]):
        properties = json_schema(tp)["properties"]
        assert [name for name, said in properties.items() if said.get("x-card-number")] == ["card_id"]
        assert properties["transaction_id"]["x-identity"] is True
