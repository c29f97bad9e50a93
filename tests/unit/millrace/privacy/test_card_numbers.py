"""Card numbers in messages: all that are there go, however they are written, and nothing else changes.

The oracle tries every stretch of every text, character by character, with ranges of numbers as a table and
the check digit as the standard's own example computes it.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator

import pytest

from millrace.privacy.fields import Treatment
from millrace.privacy.masking import TOKEN, Masker, may_have_number
from millrace.privacy.numbers import has_check_digit, is_card_number
from tests.cases import case_count

CARD = "4111111111111111"
FIELDS: dict[str, Treatment] = {"card_id": "card", "transaction_id": "kept", "at_ms": "number"}
#: First digits from … to → lengths.
RANGES = (
    ("4", "4", (13, 16, 19)),
    ("51", "55", (16,)),
    ("50", "50", range(13, 20)),
    ("56", "58", range(13, 20)),
    ("60", "69", range(16, 20)),
    ("63", "63", range(13, 20)),
    ("67", "67", range(13, 20)),
    ("2221", "2720", (16,)),
    ("2200", "2204", range(16, 20)),
    ("34", "34", (15,)),
    ("37", "37", (15,)),
    ("300", "305", range(14, 20)),
    ("309", "309", range(14, 20)),
    ("36", "36", range(14, 20)),
    ("38", "39", range(14, 20)),
    ("3528", "3589", range(16, 20)),
    ("81", "82", (16,)),
    ("9792", "9792", (16,)),
)


def token(number: str) -> str:
    return f"card-{int(number) % 16**24:024x}"


MASKER = Masker(token, FIELDS)


def luhn(digits: str) -> bool:
    total = 0
    for place, char in enumerate(digits[::-1]):
        doubled = str(int(char) * 2) if place % 2 else char
        total += sum(map(int, doubled))
    return str(total)[-1] == "0"


def is_number(digits: str) -> bool:
    fits = any(low <= digits[: len(low)] <= high and len(digits) in lengths for low, high, lengths in RANGES)
    return fits and luhn(digits)


def numbers_in(text: str) -> list[str]:
    """Return every card number that a text has, by trying all places."""
    found = []
    for start, char in enumerate(text):
        if not char.isdecimal() or (start and text[start - 1].isdecimal()):
            continue
        digits, between = "", 0
        for end in range(start, len(text)):
            if text[end].isdecimal():
                digits += str(unicodedata.decimal(text[end]))
                between = 0
                ends = end + 1 == len(text) or not text[end + 1].isdecimal()
                if ends and 13 <= len(digits) <= 19 and is_number(digits):
                    found.append(digits)
            elif text[end].isalnum() or between == 3:
                break
            else:
                between += 1
            if len(digits) > 19:
                break
    return found


def a_number(random_: random.Random) -> str:
    while True:
        low, high, lengths = random_.choice(RANGES)
        first = str(random_.randint(int(low), int(high)))
        rest = "".join(random_.choices("0123456789", k=random_.choice(list(lengths)) - len(first) - 1))
        for check in "0123456789":
            if luhn(first + rest + check):
                return first + rest + check


def written(number: str, random_: random.Random) -> str:
    """Return a number as somebody may write it."""
    way = random_.randrange(6)
    if way == 0:
        return number
    if way == 1:
        sign = random_.choice(" -./\u00a0_\t")
        return sign.join(number[at : at + 4] for at in range(0, len(number), 4))
    if way == 2:
        return "".join(chr(0xFF10 + int(c)) if random_.random() < 0.5 else c for c in number)
    if way == 3:
        between = ["", "", " ", "--", " - ", "\n", "·", "\u200b"]
        return "".join(c + random_.choice(between) for c in number[:-1]) + number[-1]
    if way == 4:
        return f"PAN{number}Z"
    return f"({number[:6]}) {number[6:]}"


def noise(random_: random.Random) -> str:
    return "".join(random_.choices('abcxyz0123456789 -./:,üß"\\', k=random_.randrange(0, 40)))


def literal(text: str, random_: random.Random) -> str:
    """Return a text as JSON, some of its characters as escapes."""
    made = json.dumps(text, ensure_ascii=random_.random() < 0.3)
    if random_.random() < 0.3:
        escaped = [c.isascii() and c.isalnum() and random_.random() < 0.2 for c in text]
        parts = [f"\\u{ord(c):04X}" if e else json.dumps(c)[1:-1] for c, e in zip(text, escaped, strict=True)]
        made = f'"{"".join(parts)}"'
    return made.replace("/", r"\/") if random_.random() < 0.3 else made


def texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)


def message(random_: random.Random, planted: list[str]) -> str:
    """Return a message as JSON, in some of its texts a card number."""
    members = []
    for at in range(random_.randrange(1, 6)):
        text = noise(random_)
        if random_.random() < 0.3:
            planted.append(a_number(random_))
            # Letters around it: what stands there must not make another number of it.
            text = f"{text}x{written(planted[-1], random_)}x"
        value = literal(text, random_)
        shape = random_.randrange(5)
        value = f"[{value}, 12]" if shape == 0 else f'{{"transaction_id": {value}}}' if shape == 1 else value
        members.append(f'"f{at}"{" " * random_.randrange(2)}:{value}')
    members.append(f'"transaction_id":"{a_number(random_)}"')
    members.append(f'"at_ms":{random_.choice([a_number(random_), "1767225600000"])}')
    if random_.random() < 0.5:
        planted.append(a_number(random_))
        card = random_.choice([planted[-1], written(planted[-1], random_)])
        members.append(f'"card_id": {literal(card, random_)}')
    random_.shuffle(members)
    return "{" + ",".join(members) + "}"


@pytest.mark.parametrize("seed", range(case_count(10)))
def test_of_10000_messages_all_numbers_go_and_nothing_else_changes(seed: int) -> None:
    random_ = random.Random(seed)
    both: list[tuple[bytes, bytes]] = []
    for _ in range(1_000):
        planted: list[str] = []
        raw = message(random_, planted)
        made = MASKER.message(raw.encode(errors="surrogatepass")).decode(errors="surrogatepass")
        before, after = json.loads(raw), json.loads(made)
        for name in ("transaction_id", "at_ms"):  # what identifies an event, and times
            assert after.pop(name) == before.pop(name), raw
        left = [number for text in texts(after) for number in numbers_in(TOKEN.sub("|x|", text))]
        assert left == [], (seed, raw, made)
        assert all(token(number) in made for number in planted), (seed, raw, made)
        if not [number for text in texts(before) for number in numbers_in(text)]:
            assert made == raw
        assert MASKER.message(made.encode()) == made.encode()
        both.append((raw.encode(errors="surrogatepass"), made.encode(errors="surrogatepass")))
    # All at once, behind a first look by another expression, it is the same.
    assert MASKER.messages([raw for raw, _ in both]) == [made for _, made in both]


@pytest.mark.parametrize("seed", range(5))
def test_of_2000_messages_that_cannot_be_read_all_numbers_go(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(400):
        planted: list[str] = []
        raw = message(random_, planted).encode(errors="surrogatepass")
        cut = raw[: random_.randrange(len(raw))] if random_.random() < 0.5 else b"\xff" + raw
        made = MASKER.message(cut)
        whole = [n for n in planted if n.encode() in cut.replace(b"\\", b"")]
        for number in whole:
            if is_whole(number, cut):
                assert number.encode() not in made, (seed, cut)


def is_whole(number: str, message: bytes) -> bool:
    """Return whether no digit stands before or behind a number in a message."""
    at = message.find(number.encode())
    around = message[at - 1 : at] + message[at + len(number) : at + len(number) + 1]
    return at >= 0 and not any(48 <= byte <= 57 for byte in around)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (b'{"card_id":"4111 1111 1111 1111"}', b'{"card_id":"%s"}'),
        (b'{"card_id":"4111-1111-1111-1111"}', b'{"card_id":"%s"}'),
        (b'{"card_id":"PAN4111111111111111"}', b'{"card_id":"PAN%s"}'),
        (b'{"card_id":"4111111111111111Z"}', b'{"card_id":"%sZ"}'),
        (rb'{"card_id":"\u0034111111111111111"}', b'{"card_id":"%s"}'),
        (b'{"note":"%s"}' % b"".join(b"\\u003%c" % digit for digit in CARD.encode()), b'{"note":"%s"}'),
        (rb'{"note":"4111\/1111\/1111\/1111"}', b'{"note":"%s"}'),
        (b'{"card_id":4111111111111111}', b'{"card_id":"%s"}'),
        (b'{"4111111111111111":1}', b'{"%s":1}'),
        (b'{"card_id": "4111111111111111', b'{"card_id": "%s'),
        (rb"not JSON \u0034111 1111 1111 1111", b"not JSON %s"),
        (b"\xff4111111111111111\x00", b"\xff%s\x00"),
        (CARD.encode("utf-16-le"), b"%s\x00"),
        (b'{"note":"12 4111 1111 1111 1111 12/27"}', b'{"note":"12 %s 12/27"}'),
        (b'{"deep":{"transaction_id":"4111111111111111"}}', b'{"deep":{"transaction_id":"%s"}}'),
        (b'"4111111111111111"', b'"%s"'),
    ],
)
def test_a_number_goes_however_it_is_written(given: bytes, made: bytes) -> None:
    expected = made.replace(b"%s", token(CARD).encode())
    assert MASKER.message(given) == expected
    assert MASKER.messages([b"{}", given]) == [b"{}", expected]


@pytest.mark.parametrize(
    "given",
    [
        b'{"at_ms": 1767225600000, "amount": 4111111111.11}',
        b'{"at_ms": 4111111111111111, "transaction_id": "4111111111111111"}',
        b'{"card_id": "card-0000007", "note": "5e1c-0000000042"}',
        b'{"card_id": "4111111111111112"}',  # the check digit is wrong
        b'{"card_id": "7992739871300000"}',  # nobody's cards begin so
        b'{"card_id": "41111111111111114111111111111111"}',
        b'{"card_id": "card-0a0b0c0d-a4111111111111111b000000"}',  # a token
        b'{"ip": "2001:db8::1", "at": "2026-01-12 10:00:00.000"}',
        b'["4111", "1111", "1111", "1111"]',
        b"",
    ],
)
def test_what_is_no_card_number_stays(given: bytes) -> None:
    assert MASKER.message(given) == given


@pytest.mark.parametrize("seed", range(5))
def test_of_10000_broken_messages_none_is_too_much_and_numbers_go(seed: int) -> None:
    """Bytes are changed, put in and taken out anywhere but in the number: no UTF-8, no JSON, or some."""
    rng = random.Random(seed)
    strange = (
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\x00",
        b'"',
        b"\\",
        b"\\u",
        b"\\ud800",
        b"{",
        b"]",
        b"\xef\xbb\xbf",
    )
    masker = Masker(lambda number: "card-x", FIELDS)
    for _ in range(2_000):
        parts = [b'{"card_id": "', CARD.encode(), '", "where": "Köln, 17", "at_ms": 1767225600000}'.encode()]
        for _ in range(rng.randrange(1, 4)):
            place = rng.choice((0, 2))
            at = rng.randrange(1, len(parts[place]) - 1) if len(parts[place]) > 2 else 0
            gone = rng.choice((0, 0, 1, 2))
            parts[place] = parts[place][:at] + rng.choice(strange) + parts[place][at + gone :]
        parts[0] += b'"'
        assert CARD.encode() not in masker.message(b"".join(parts)), parts


def test_what_can_be_read_in_two_ways_has_both_tokens() -> None:
    """Of 17 digits in groups the first 16 are a number, and so are the last 16."""
    both = "4 616857607530848 0"
    readings = numbers_in(both)
    assert len(readings) == 2
    made = MASKER.text(f"x{both}x")
    assert made == f"x{' '.join(map(token, readings))}x"


def test_a_message_of_one_field_costs_no_more_than_its_length() -> None:
    for piece in ("1 ", "4 ", "4111 ", "4-", "\\u0034", "\\"):
        raw = b'{"note":"' + piece.encode() * (60_000 // len(piece)) + b'"'
        MASKER.message(raw)  # within the test's time


def test_check_digits() -> None:
    numbers = (CARD, "5500005555555559", "378282246310005", "6011111111111118")
    assert [has_check_digit(n) for n in numbers] == [True, True, True, False]
    random_ = random.Random(1)
    for _ in range(3_000):
        digits = "".join(random_.choices("0123456789", k=random_.randrange(12, 21)))
        assert is_card_number(digits) == (is_number(digits) and 13 <= len(digits) <= 19), digits


def test_clean_messages_are_told_by_a_first_look() -> None:
    clean = b'{"card_id":"card-0000007","at_ms":1767225600000,"latitude":52.520008,"longitude":13.404954}'
    assert not may_have_number(clean)
    assert not may_have_number('{"note":"Müller · 12"}'.encode())
    values = [clean, clean]
    assert MASKER.messages(values) is values
    assert MASKER.messages([*values, b"\xff4111111111111111", b"4\x80111111111111111"])[2] != values[0]
