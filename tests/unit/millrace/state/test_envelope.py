"""Stored values: what was changed, cut, moved or written with another key is refused, and says so."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.state import keyring as keyring_module
from millrace.state import map_state, value_state
from millrace.state.cells import CLOCK_PAGE, encode, read_clock, read_header, read_page
from millrace.state.envelope import EnvelopeBackend, Place, key_of, unwrap, wrap
from millrace.state.keyring import Keyring, StateKeyError, generate_key, key_id, parse_keys
from millrace.state.pages import PagedStore, StateCorrupted
from millrace.time.clock import ClockState, Minimum
from tests.unit.millrace.state.cases import Bed, DictBackend
from tests.unit.millrace.state.golden import FOLDER, GROUPS, from_json
from tests.unit.millrace.state.test_golden import kept

HERE = Place("Balance", 7, "page", 3)
ELSEWHERE = [
    Place("Balances", 7, "page", 3),
    Place("Balance", 8, "page", 3),
    Place("Balance", 7, "page", 4),
    Place("Balance", 7, "header", 3),
    Place("Balance", 7, "broadcast", 3),
]
#: Of a fixed key, so that what this version writes is read by every later one.
FIXED = parse_keys("millrace-key:" + "A" * 43)[0]
GOLDEN = bytes.fromhex(
    "c10268d969e5f9abde9e5d32fb574e4015efdc0e970d6d2adb8fb529bd5a322544a2b3e47e0e3e1d1cb6ba0ff46c3d45aff684014ae31d4760"
)


def a_ring(keys: int = 1) -> Keyring:
    return Keyring([parse_keys(generate_key())[0] for _ in range(keys)])


def changed(data: bytes, at: int, bits: int = 0xFF) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


class TestEncrypted:
    @given(st.binary(max_size=300), st.text(max_size=20), st.integers(-(2**31), 2**31), st.integers(0, 2**25))
    def test_a_value_is_read_back_as_it_was(self, data: bytes, process: str, group: int, page: int) -> None:
        ring, place = a_ring(), Place(process, group, "page", page)
        assert unwrap(wrap(data, place, ring), place, ring) == data

    def test_a_value_of_the_first_version_is_still_read(self) -> None:
        assert unwrap(GOLDEN, HERE, Keyring([FIXED])) == b"a value"

    def test_equal_values_look_different(self) -> None:
        ring = a_ring()
        stored = {wrap(b"the same" * 50, HERE, ring) for _ in range(200)}
        assert len(stored) == 200
        assert not any(b"the same" in one for one in stored)

    def test_a_change_of_any_byte_is_refused(self) -> None:
        ring = a_ring(2)
        stored = wrap(b"a balance of 12.50", HERE, ring)
        for at in range(len(stored)):
            for bits in (0x01, 0x80, 0xFF):
                with pytest.raises((StateCorrupted, StateKeyError), match="page 3 of key group 7 of Balance"):
                    unwrap(changed(stored, at, bits), HERE, ring)

    def test_a_value_that_is_cut_or_lengthened_is_refused(self) -> None:
        ring = a_ring()
        stored = wrap(b"a balance of 12.50", HERE, ring)
        for length in range(len(stored)):
            with pytest.raises(StateCorrupted, match="page 3 of key group 7 of Balance"):
                unwrap(stored[:length], HERE, ring)
        with pytest.raises(StateCorrupted):
            unwrap(stored + b"\0", HERE, ring)

    @pytest.mark.parametrize("place", ELSEWHERE, ids=str)
    def test_a_value_from_another_place_is_refused(self, place: Place) -> None:
        ring = a_ring()
        with pytest.raises(StateCorrupted, match="changed or moved"):
            unwrap(wrap(b"value", HERE, ring), place, ring)

    def test_a_key_that_is_not_there_is_named(self) -> None:
        ours, theirs = a_ring(), a_ring(2)
        with pytest.raises(StateKeyError) as caught:
            unwrap(wrap(b"value", HERE, ours), HERE, theirs)
        text = str(caught.value)
        assert ours.ids[0] in text
        assert all(one in text for one in theirs.ids)
        assert "page 3 of key group 7 of Balance" in text

    def test_without_keys_the_one_that_is_needed_is_named(self) -> None:
        ring = a_ring()
        with pytest.raises(StateKeyError, match=rf"encrypted with key {ring.ids[0]}: set state\.encryption"):
            unwrap(wrap(b"value", HERE, ring), HERE, None)

    @pytest.mark.parametrize("clear", [wrap(b"value", HERE, None), b"\x81\xa1a\x01"])
    def test_with_keys_a_value_in_clear_is_refused_as_anyone_can_write_one(self, clear: bytes) -> None:
        with pytest.raises(StateCorrupted, match="not encrypted"):
            unwrap(clear, HERE, a_ring())

    def test_the_first_key_seals_and_all_of_them_open(self) -> None:
        old, new = (parse_keys(generate_key())[0] for _ in range(2))
        both = Keyring([new, old])
        before, now = wrap(b"old", HERE, Keyring([old])), wrap(b"new", HERE, both)
        assert [unwrap(stored, HERE, both) for stored in (before, now)] == [b"old", b"new"]
        assert (key_of(before), key_of(now)) == (key_id(old), key_id(new)) == both.ids[::-1]

    def test_a_derived_key_is_given_up_long_before_its_nonces_repeat(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keyring_module, "_VALUES_PER_SALT", 3)
        ring = a_ring()
        salts = [wrap(b"value", HERE, ring)[6:22] for _ in range(7)]
        assert [len(set(salts[i : i + 3])) for i in (0, 3)] == [1, 1]
        assert len(set(salts)) == 3

    def test_more_salts_than_a_ring_remembers_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keyring_module, "_REMEMBERED", 2)
        monkeypatch.setattr(keyring_module, "_VALUES_PER_SALT", 1)
        ring = a_ring()
        stored = [wrap(bytes([i]), HERE, ring) for i in range(9)]
        assert [unwrap(one, HERE, ring) for one in stored] == [bytes([i]) for i in range(9)]


class TestChecked:
    def test_a_value_is_read_back_as_it_was(self) -> None:
        assert unwrap(wrap(b"", HERE, None), HERE, None) == b""
        assert key_of(wrap(b"value", HERE, None)) is None

    @pytest.mark.parametrize("group", GROUPS)
    def test_a_change_of_any_byte_of_state_is_refused(self, group: str) -> None:
        """By the checksum; a change of the mark itself by what reads the values."""
        backend = GROUPS[group][0]().backend
        assert backend.header is not None
        values: list[tuple[Place, bytes, Any]] = [(Place("Bed", 0, "header"), backend.header, read_header)]
        for number in sorted(backend.pages)[1:4]:
            data, place = backend.pages[number], Place("Bed", 0, "page", number)
            values.append((place, data, partial(read_page, number=number)))
        for place, data, read in values:
            stored = wrap(data, place, None)
            assert read(unwrap(stored, place, None))
            for at in range(len(stored)):
                for bits in (0x01, 0x40, 0xFF):
                    with pytest.raises(StateCorrupted):
                        read(unwrap(changed(stored, at, bits), place, None))

    def test_a_value_that_is_cut_is_refused(self) -> None:
        for data in (b"", b"a balance of 12.50"):
            stored = wrap(data, HERE, None)
            for length in range(len(stored)):
                with pytest.raises(StateCorrupted, match="page 3 of key group 7 of Balance"):
                    unwrap(stored[:length], HERE, None)

    def test_a_form_of_a_later_version_is_refused(self) -> None:
        with pytest.raises(StateCorrupted, match="later version"):
            unwrap(b"\xc1\x03value", HERE, None)

    def test_what_is_missing_is_named(self) -> None:
        for ring in (None, a_ring()):
            with pytest.raises(StateCorrupted, match="page 3 of key group 7 of Balance is missing"):
                unwrap(b"", HERE, ring)


class SealedBed(Bed):
    """A key group whose values are sealed on their way to the backend."""

    ring: Keyring | None = None

    def _store(self) -> PagedStore:
        sealed = EnvelopeBackend(self.backend, "Bed", self.label, self.ring)
        return PagedStore(sealed, self.layout, page_bytes=self.page_bytes, label=self.label)


def sealed_bed(ring: Keyring | None, backend: DictBackend | None = None) -> SealedBed:
    class Made(SealedBed):
        pass

    Made.ring = ring
    states: dict[str, Any] = {"name": value_state(str, default=""), "seen": map_state(str, int)}
    return Made(backend=backend, page_bytes=400, label=5, **states)


def fill(bed: Bed, keys: int) -> dict[str, str]:
    for i in range(keys):
        with bed.on(f"9:person-{i:02}") as s:
            s.name.value = f"secret-{i}"
    bed.commit(0)
    return {f"9:person-{i:02}": f"secret-{i}" for i in range(keys)}


@pytest.mark.parametrize("keys", [2, 60], ids=["one_page", "many_pages"])
class TestGroup:
    def test_nothing_of_keys_or_values_can_be_read_from_what_is_stored(self, keys: int) -> None:
        bed = sealed_bed(a_ring())
        expected = fill(bed, keys)
        assert {key: entry.name for key, entry in bed.kept().items()} == expected
        stored = b"".join([bed.backend.header or b"", *bed.backend.pages.values()])
        assert not any(word in stored for word in (b"person", b"secret", b"name", b"seen"))

    def test_sealing_changes_nothing_of_what_is_kept(self, keys: int) -> None:
        plain = Bed(page_bytes=400, label=5, name=value_state(str, default=""), seen=map_state(str, int))
        beds = [sealed_bed(None), sealed_bed(a_ring())]
        for bed in (plain, *beds):
            fill(bed, keys)
            with bed.on("9:person-01") as s:
                s.name.value = "another"
                s.seen.put("x", 3)
            bed.commit(0)
        found = [msgspec.to_builtins(bed.kept()) for bed in beds]
        assert found == [msgspec.to_builtins(plain.kept())] * 2
        assert [sorted(bed.backend.pages) for bed in beds] == [sorted(plain.backend.pages)] * 2

    def test_a_key_is_replaced_page_by_page(self, keys: int) -> None:
        old, new = (parse_keys(generate_key())[0] for _ in range(2))
        bed = sealed_bed(Keyring([old]))
        expected = fill(bed, keys)
        bed = sealed_bed(Keyring([new, old]), bed.backend)
        with bed.on("9:person-01") as s:
            s.name.value = expected["9:person-01"] = "new"
        bed.commit(0)
        assert {key: entry.name for key, entry in bed.kept().items()} == expected
        values = [bed.backend.header or b"", *bed.backend.pages.values()]
        assert {key_of(stored) for stored in values} == {key_id(old), key_id(new)}

    @pytest.mark.parametrize("ring", [None, a_ring()], ids=["checked", "encrypted"])
    def test_a_damaged_page_is_named_and_nothing_is_written(self, keys: int, ring: Keyring | None) -> None:
        bed = sealed_bed(ring)
        fill(bed, keys)
        backend = bed.backend
        number = max(backend.pages) if keys > 2 else None
        damaged = backend.pages[number] if number else backend.header or b""
        damaged = changed(damaged, len(damaged) - 5)
        if number:
            backend.pages[number] = damaged
        else:
            backend.header = damaged
        before = (backend.header, dict(backend.pages))
        what = f"page {number}" if number else "the header"
        with pytest.raises(StateCorrupted, match=f"^{what} of key group 5 of Bed "):
            fill(sealed_bed(ring, backend), keys)
        assert (backend.header, backend.pages) == before


@pytest.mark.parametrize("ring", [None, a_ring()], ids=["checked", "encrypted"])
def test_a_clock_is_sealed_in_its_place(ring: Keyring | None) -> None:
    """It cannot be taken for another page, nor for the clock of another group."""
    backend, clock = DictBackend(), encode(ClockState(5, 9, 7, (Minimum(9, "in:0"),)))
    sealed = EnvelopeBackend(backend, "Bed", 3, ring)
    sealed.put_page(CLOCK_PAGE, clock)
    stored = backend.pages[CLOCK_PAGE]
    assert sealed.unwrap_clock(stored) == clock
    assert (ring is None) == (clock in stored)
    with pytest.raises(StateCorrupted, match="the clock of key group 3 of Bed"):
        sealed.unwrap_clock(changed(stored, len(stored) - 1))
    if ring is not None:
        with pytest.raises(StateCorrupted, match="changed or moved"):
            EnvelopeBackend(backend, "Bed", 4, ring).unwrap_clock(stored)
        with pytest.raises(StateCorrupted, match="changed or moved"):
            unwrap(stored, Place("Bed", 3, "page", 1), ring)


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x91\xa1a", b"\x95\x01\x02\xc0\x91\x01\x80"])
def test_a_clock_that_cannot_be_read_stops(damage: bytes) -> None:
    with pytest.raises(StateCorrupted, match="the clock of a key group cannot be read"):
        read_clock(damage)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("path", sorted(FOLDER.glob("state-*.json")), ids=lambda p: p.stem)
def test_state_from_before_there_were_checksums_is_read_and_written_with_them(group: str, path: Any) -> None:
    backend = from_json(kept(path, group))
    sealed = EnvelopeBackend(backend, "Bed", 3, None)
    header = sealed.get_header()
    assert header is not None
    pages = {number: sealed.get_page(number) for number in backend.pages}
    assert (header, pages) == (backend.header, backend.pages)
    sealed.put_header(header)
    for number, data in pages.items():
        sealed.put_page(number, data)
    assert backend.header is not None
    assert {backend.header[:2], *(data[:2] for data in backend.pages.values())} == {b"\xc1\x01"}
    assert (sealed.get_header(), {n: sealed.get_page(n) for n in backend.pages}) == (header, pages)


def test_broadcast_state_has_a_place_of_its_own() -> None:
    ring = a_ring()
    one, other = (EnvelopeBackend(DictBackend(), "Bed", group, ring) for group in (1, 2))
    stored = one.wrap_broadcast(b"limits")
    assert one.unwrap_broadcast(stored) == b"limits"
    with pytest.raises(StateCorrupted, match="the broadcast state of key group 2 of Bed"):
        other.unwrap_broadcast(stored)


def test_keys_are_neither_shown_nor_sent() -> None:
    text = generate_key()
    ring = Keyring(parse_keys(text))
    secret = parse_keys(text)[0]
    assert repr(ring) == str(ring) == f"Keyring({ring.ids[0]})"
    assert secret.hex() not in repr(vars(KeyError(ring)))
    with pytest.raises(TypeError, match="keys do not travel"):
        pickle.dumps(ring)
