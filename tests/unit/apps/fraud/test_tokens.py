from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from apps.fraud.tokens import TokenKeyError, Tokens, is_card_number, read_key, replacing

CARD, OTHER = b"4111111111111111", b"5500005555555559"
TOKENS = Tokens(b"k" * 32)


def test_equal_numbers_have_equal_tokens_and_other_keys_other_ones() -> None:
    first, again = (TOKENS.replaced(b'{"card_id": "%s"}' % CARD) for _ in range(2))
    assert first == again != Tokens(b"q" * 32).replaced(b'{"card_id": "%s"}' % CARD)
    assert CARD not in first
    assert TOKENS.replaced(OTHER) != TOKENS.replaced(CARD)


@pytest.mark.parametrize(
    "text",
    [
        b'{"event_time_ms": 1767225600000, "amount": 4111111111.11}',
        b'{"card_id": "card-0000007", "transaction_id": "5e1c4111111111111111"}',
        b'{"card_id": "4111111111111112"}',  # the check digit is wrong
        b'{"card_id": "41111111111111114111111111111111"}',
        b"",
    ],
)
def test_what_is_no_card_number_stays(text: bytes) -> None:
    assert TOKENS.replaced(text) == text


@pytest.mark.parametrize("text", [b'{"card": %s', b"%s", b'\xff"%s"\x00', b'["%s","%s"]'])
def test_a_card_number_goes_from_broken_messages_too(text: bytes) -> None:
    assert CARD not in TOKENS.replaced(text.replace(b"%s", CARD))


def test_luhn() -> None:
    assert [is_card_number(n) for n in (CARD, OTHER, b"378282246310005", b"6011111111111118")] == [
        True,
        True,
        True,
        False,
    ]


def test_a_key_is_read_and_must_be_long(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32 + b"\n")
    assert read_key(path) == b"k" * 32
    path.write_bytes(b"short")
    with pytest.raises(TokenKeyError, match="has 5 bytes; it needs 32 or more"):
        read_key(path)
    with pytest.raises(TokenKeyError, match="cannot be read"):
        read_key(tmp_path / "none")


def test_batches_of_records_keep_their_shape() -> None:
    batch = pa.RecordBatch.from_pydict({"offset": [1, 2], "value": [CARD, None], "key": [None, b"x"]})
    (found,) = replacing(b"k" * 32)(iter([batch]))
    assert found.schema == batch.schema
    assert found.to_pydict() == {
        "offset": [1, 2],
        "value": [TOKENS.replaced(CARD), None],
        "key": [None, b"x"],
    }
