"""Keys for tokens: what is made, what is read, and what stays as it is when a key is replaced."""

from __future__ import annotations

import pickle
import random
import stat
from pathlib import Path

import pytest

from millrace.privacy.keys import TokenKeyError, keys_in, known_file, make_key_file, read_ring, rotate

NUMBERS = ["4111111111111111", "5500005555555559", "378282246310005", "6011111111111117"]


def test_a_made_key_is_its_owners_alone_and_made_once(tmp_path: Path) -> None:
    path = tmp_path / "privacy" / "token.keys"
    assert make_key_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert not make_key_file(path)
    assert path.read_bytes() == before
    key_id = read_ring(path).keys[0].id
    assert read_ring(path).token(NUMBERS[0]).startswith(f"card-{key_id}-")


def test_a_file_that_is_a_key_makes_the_tokens_that_it_has_always_made(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"0" * 32 + b"\n")
    assert read_ring(path).token(NUMBERS[0]) == "card-237ee474b94d38c4e6358ec1"
    path.write_bytes(b"short")
    with pytest.raises(TokenKeyError, match="has 5 bytes; it needs 32 or more"):
        read_ring(path)
    with pytest.raises(TokenKeyError, match="cannot be read"):
        read_ring(tmp_path / "none")
    path.write_bytes(b"millrace-key:not-one")
    with pytest.raises(TokenKeyError, match="no key") as error:
        read_ring(path)
    assert "not-one" not in str(error.value)


def test_a_number_keeps_its_token_when_the_key_is_replaced_and_a_new_one_gets_a_new_one(
    tmp_path: Path,
) -> None:
    """The first number is seen before there is a second key, the second before there is a third.

    key      first ──────── second ─────── third
    numbers  0 seen         1 seen         2 seen   0 and 1 as before
    """
    path = tmp_path / "key"
    path.write_bytes(b"q" * 40)
    seen = [read_ring(path).token(NUMBERS[0])]
    for number in NUMBERS[1:3]:
        new, kept = rotate(path, [*seen, "card-0000007", "terminal-1"])
        assert kept == 1  # those of the key before; the others are kept already
        assert [read_ring(path).token(n) for n in NUMBERS[: len(seen)]] == seen
        seen.append(read_ring(path).token(number))
        assert seen[-1].startswith(f"card-{new}-")
    assert len({read_ring(path).keys[at].secret for at in range(3)}) == 3
    assert seen[0] in read_ring(path).tokens(NUMBERS[0])
    assert len(read_ring(path).tokens(NUMBERS[0])) == 3


def test_of_10000_numbers_over_five_keys_each_keeps_the_token_that_it_had_first(tmp_path: Path) -> None:
    random_ = random.Random(7)
    path = tmp_path / "key"
    make_key_file(path)
    first: dict[str, str] = {}
    for _ in range(5):
        ring = read_ring(path)
        for _ in range(2_000):
            number = str(random_.randrange(10**15, 10**15 + 6_000))
            assert first.setdefault(number, ring.token(number)) == ring.token(number)
        rotate(path, random_.sample(sorted(first.values()), len(first)))
    ring = read_ring(path)
    assert {number: ring.token(number) for number in first} == first
    assert len({one.split("-")[1] for one in first.values()}) == 5


def test_a_replacement_that_is_cut_off_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_file(path)
    before, seen = path.read_bytes(), read_ring(path).token(NUMBERS[0])
    rotate(path, [seen])
    path.write_bytes(before)  # the tokens are written first
    assert known_file(path, read_ring(path).keys[0]).is_file()
    assert read_ring(path).token(NUMBERS[0]) == seen
    known_file(path, read_ring(path).keys[0]).unlink()
    rotate(path, [seen])
    known_file(path, read_ring(path).keys[1]).unlink()
    with pytest.raises(TokenKeyError, match="cannot be read"):
        read_ring(path)


def test_what_travels_names_the_file_and_holds_no_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_file(path)
    keys = keys_in(path)
    secret = read_ring(path).keys[0].secret
    assert secret not in pickle.dumps(keys)
    assert pickle.loads(pickle.dumps(keys)).ring().token(NUMBERS[0]) == read_ring(path).token(NUMBERS[0])  # noqa: S301
    other = keys._replace(ids=("00000000",))
    with pytest.raises(TokenKeyError, match="not those of the driver"):
        other.ring()
