"""A checkpoint goes on only with what it was written by, and with one owner at a time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from millrace.runtime.contract import (
    CONTRACT_FILE,
    CheckpointInUse,
    ContractMismatch,
    check_contract,
    contract_differences,
    is_older,
    owned,
    refuse_older,
    with_own_clock,
)
from millrace.state.layout import ENCODING_VERSION
from millrace.state.schema import describe_state
from millrace.state.specs import StateSpec
from millrace.time.clock import CLOCK_VERSION

CONTRACT: dict[str, Any] = {
    "process": "Balance",
    "version": 1,
    "key_groups": 64,
    "hash": "crc32",
    "encoding": 1,
    "clock": 1,
    "order": "arrival",
    "layout": ["balance", "seen"],
    "states": {
        "balance": {"kind": "value", "type": "float", "key_type": None, "ttl_ms": None},
        "seen": {"kind": "map", "type": "int", "key_type": "str", "ttl_ms": 60_000},
    },
}


def changed(**top: Any) -> dict[str, Any]:
    return {**CONTRACT, **top}


def with_state(name: str, **fields: Any) -> dict[str, Any]:
    states = {**CONTRACT["states"], name: {**CONTRACT["states"].get(name, {}), **fields}}
    return changed(states=states)


def test_the_first_start_writes_the_contract_and_the_next_accepts_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "fraud"
    incarnation = check_contract(folder, CONTRACT)
    kept = json.loads((folder / CONTRACT_FILE).read_text())
    assert kept == {"incarnation": incarnation, **CONTRACT}
    (folder / "checkpoint").mkdir()
    assert check_contract(folder, CONTRACT) == incarnation
    assert [p.name for p in folder.iterdir() if p.is_file()] == [CONTRACT_FILE]


def test_of_a_chain_it_is_said_which_link_differs_and_in_what(tmp_path: Path) -> None:
    """Its topics were rewritten to events of one type; now they are inputs."""
    links = [{"process": "Gate", "key": ["entity"]}, {"process": "Desk", "key": ["region"], "takes": "main"}]
    now = [{"process": "Gate", "key": ["driver"], "inputs": ["on", "off"]}, links[1]]
    check_contract(tmp_path, {"process": "Gate > Desk", "links": links, "states": {}})
    with pytest.raises(ContractMismatch) as refused:
        check_contract(tmp_path, {"process": "Gate > Desk", "links": now, "states": {}})
    said = 'links[0].inputs is new (["on", "off"]); links[0].key was ["entity"], is now ["driver"]. Go'
    assert f"cannot be continued: {said}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_input_may_come_behind_those_that_there_were_and_none_may_go_or_move(tmp_path: Path) -> None:
    """What waits is kept with the place of its input."""

    def contract(*inputs: str) -> dict[str, Any]:
        return {"process": "Gate", "inputs": list(inputs), "states": {}}

    incarnation = check_contract(tmp_path, contract("on", "off"))
    assert check_contract(tmp_path, contract("on", "off", "moved")) == incarnation
    assert json.loads((tmp_path / CONTRACT_FILE).read_text())["inputs"] == ["on", "off", "moved"]
    for other in (
        contract("on", "off"),
        contract("on", "moved", "off"),
        contract("new", "on", "off", "moved"),
    ):
        with pytest.raises(ContractMismatch, match="inputs was"):
            check_contract(tmp_path, other)


OLDER = {name: value for name, value in CONTRACT.items() if name != "clock"} | {"time_domain": "event_time"}
CHAIN = {"process": "Gate > Desk", "states": {}}


@pytest.mark.parametrize(
    "older", [OLDER, {**CHAIN, "links": [OLDER, OLDER]}, {**CHAIN, "links": [CONTRACT, OLDER]}]
)
def test_a_checkpoint_of_the_time_when_the_engine_kept_the_clock_is_to_be_converted(
    tmp_path: Path, older: dict[str, Any]
) -> None:
    (tmp_path / CONTRACT_FILE).write_text(json.dumps({"incarnation": "ab12", **older}))
    before = (tmp_path / CONTRACT_FILE).read_bytes()
    assert is_older(older)
    for refuse in (refuse_older, lambda folder: check_contract(folder, CONTRACT)):
        with pytest.raises(ContractMismatch, match=f"Spark kept the clock.*: millrace convert {tmp_path}$"):
            refuse(tmp_path)
    assert (tmp_path / CONTRACT_FILE).read_bytes() == before


@pytest.mark.parametrize("kept", [None, "{", "[1]", "null", json.dumps(CONTRACT), json.dumps(CHAIN)])
def test_no_other_contract_is_taken_for_an_older_one(tmp_path: Path, kept: str | None) -> None:
    """Whoever reads it next says what is wrong with it, if anything is."""
    if kept is not None:
        (tmp_path / CONTRACT_FILE).write_text(kept)
    refuse_older(tmp_path)


def test_the_contract_of_what_was_converted_is_one_of_now() -> None:
    def brought(contract: dict[str, Any]) -> dict[str, Any]:
        return {**contract, "clock": CLOCK_VERSION, "encoding": ENCODING_VERSION}

    assert with_own_clock(OLDER) == brought(CONTRACT)
    chain = with_own_clock({**CHAIN, "incarnation": "ab12", "links": [OLDER, {**OLDER, "version": 2}]})
    assert chain == {
        **CHAIN,
        "incarnation": "ab12",
        "links": [brought(CONTRACT), brought(changed(version=2))],
    }
    assert not is_older(chain)


def test_keys_may_get_clocks_of_their_own_and_keep_them(tmp_path: Path) -> None:
    for kept, now in (
        (CONTRACT, changed(time="key")),
        ({**CHAIN, "links": [CONTRACT, CONTRACT]}, {**CHAIN, "links": [changed(time="key"), CONTRACT]}),
    ):
        folder = tmp_path / str("links" in kept)
        incarnation = check_contract(folder, kept)
        assert check_contract(folder, now) == incarnation
        assert check_contract(folder, now) == incarnation
        with pytest.raises(ContractMismatch, match="time is gone"):
            check_contract(folder, kept)


def test_every_checkpoint_has_an_incarnation_of_its_own(tmp_path: Path) -> None:
    assert len({check_contract(tmp_path / str(i), CONTRACT) for i in range(5)}) == 5


def test_what_json_cannot_tell_apart_is_no_difference(tmp_path: Path) -> None:
    check_contract(tmp_path, changed(layout=("balance", "seen")))
    check_contract(tmp_path, CONTRACT)


@pytest.mark.parametrize(
    ("now", "named"),
    [
        (changed(process="Balances"), 'process was "Balance", is now "Balances"'),
        (changed(version=2), "version was 1, is now 2"),
        (changed(key_groups=128), "key_groups was 64, is now 128"),
        (changed(hash="xxhash"), 'hash was "crc32", is now "xxhash"'),
        (changed(encoding=2), "encoding was 1, is now 2"),
        (changed(clock=2), "clock was 1, is now 2"),
        (changed(order="event_time"), 'order was "arrival", is now "event_time"'),
        (with_state("balance", type="int"), 'states.balance.type was "float", is now "int"'),
        (with_state("seen", kind="value"), 'states.seen.kind was "map", is now "value"'),
        (with_state("seen", key_type="int"), 'states.seen.key_type was "str", is now "int"'),
        (with_state("seen", type="str"), 'states.seen.type was "int", is now "str"'),
        (with_state("sum", kind="map", alias=["balance"]), 'states.sum.kind was "value", is now "map"'),
        (with_state("sum", type="float", kind="value", alias=["balance"]), "both read what was 'balance'"),
    ],
)
def test_a_difference_is_refused_by_its_name(tmp_path: Path, now: dict[str, Any], named: str) -> None:
    check_contract(tmp_path, CONTRACT)
    before = (tmp_path / CONTRACT_FILE).read_bytes()
    with pytest.raises(ContractMismatch) as refused:
        check_contract(tmp_path, now)
    assert named in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert (tmp_path / CONTRACT_FILE).read_bytes() == before


@pytest.mark.parametrize(
    "now",
    [
        changed(layout=["seen", "balance"]),
        with_state("seen", ttl_ms=None),
        with_state("seen", type="float"),
        with_state("balance", type={"union": ["float", "none"]}),
        with_state("more", kind="value", type="int", key_type=None, ttl_ms=None),
        changed(states={"seen": CONTRACT["states"]["seen"]}),
    ],
)
def test_a_change_that_the_state_can_take_is_taken_over(tmp_path: Path, now: dict[str, Any]) -> None:
    incarnation = check_contract(tmp_path, CONTRACT)
    assert check_contract(tmp_path, now) == incarnation
    kept = json.loads((tmp_path / CONTRACT_FILE).read_text())
    assert {name: kept[name] for name in now} == now
    assert check_contract(tmp_path, now) == incarnation


class Seen(msgspec.Struct, array_like=True):
    at: int
    of: Annotated[list[str], msgspec.Meta(max_length=9)] = []
    worth: int | None = None
    kind: Literal["a", "b"] = "a"


class SeenNow(msgspec.Struct, array_like=True):
    """The same, widened, with a field more."""

    at: float
    of: Annotated[list[str], msgspec.Meta(max_length=9)] = []
    worth: float | str | None = None
    kind: Literal["a", "b", "c"] = "a"
    more: frozenset[int] = frozenset()


def test_a_struct_that_the_state_can_take_is_taken_over_from_the_file_too(tmp_path: Path) -> None:
    """The file sorts names, so that a description comes back with its parts in another order."""

    def of(tp: Any) -> dict[str, Any]:
        spec = StateSpec("value", tp, name="last")
        return changed(states={"last": describe_state(spec)})

    incarnation = check_contract(tmp_path, of(dict[str, Seen]))
    assert check_contract(tmp_path, of(dict[str, SeenNow])) == incarnation
    with pytest.raises(ContractMismatch, match=r"states\.last\.type\[\]\.at was \"float\", is now \"int\""):
        check_contract(tmp_path, of(dict[str, Seen]))


def test_a_state_that_comes_back_must_read_what_its_first_time_left(tmp_path: Path) -> None:
    """Entries that nobody touched between the two are as the first version wrote them."""
    check_contract(tmp_path, CONTRACT)
    check_contract(tmp_path, changed(states={"seen": CONTRACT["states"]["seen"]}))
    with pytest.raises(ContractMismatch, match=r'states\.balance\.type was "float", is now "str"'):
        check_contract(tmp_path, with_state("balance", type="str"))
    check_contract(tmp_path, CONTRACT)


def test_a_renamed_state_keeps_its_alias(tmp_path: Path) -> None:
    states = {"seen": CONTRACT["states"]["seen"]}
    renamed = {**CONTRACT["states"]["balance"], "alias": ["balance"]}
    check_contract(tmp_path, CONTRACT)
    check_contract(tmp_path, changed(states={**states, "sum": renamed}))
    with pytest.raises(ContractMismatch, match=r"states\.sum\.alias no longer has 'balance'"):
        check_contract(tmp_path, changed(states={**states, "sum": CONTRACT["states"]["balance"]}))
    again = {**renamed, "alias": ["sum", "balance"]}
    check_contract(tmp_path, changed(states={**states, "total": again}))


def test_all_differences_are_named_at_once(tmp_path: Path) -> None:
    check_contract(tmp_path, CONTRACT)
    with pytest.raises(ContractMismatch, match=r"key_groups was 64, is now 8; version was 1, is now 3"):
        check_contract(tmp_path, changed(version=3, key_groups=8))


def test_a_checkpoint_without_its_contract_is_refused(tmp_path: Path) -> None:
    check_contract(tmp_path, CONTRACT)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / CONTRACT_FILE).unlink()
    with pytest.raises(ContractMismatch, match=r"has no contract\.json beside it"):
        check_contract(tmp_path, CONTRACT)
    assert not (tmp_path / CONTRACT_FILE).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'"text"', b"{}"])
def test_a_contract_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CONTRACT_FILE).write_bytes(content)
    with pytest.raises(ContractMismatch, match="cannot be read"):
        check_contract(tmp_path, CONTRACT)
    assert (tmp_path / CONTRACT_FILE).read_bytes() == content


# -- one owner -------------------------------------------------------------------------------------

OWNER = """
import sys
from pathlib import Path
from millrace.runtime.contract import owned
with owned(Path(sys.argv[1])):
    print("owns", flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns ``folder`` until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "owns\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def end_by_itself(process: subprocess.Popen[str]) -> None:
    process.communicate()


def kill_9(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)


@pytest.mark.parametrize("end", [end_by_itself, kill_9])
def test_a_second_process_is_refused_with_the_owners_pid_until_it_ends(
    tmp_path: Path, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    with owner(tmp_path / "root") as process:
        for _ in range(2):
            with (
                pytest.raises(CheckpointInUse, match=rf"in use by pid {process.pid} on "),
                owned(tmp_path / "root"),
            ):
                pytest.fail("owns what another process owns")
        end(process)
        with owned(tmp_path / "root"):
            pass


def test_one_process_does_not_own_a_checkpoint_twice(tmp_path: Path) -> None:
    with owned(tmp_path):
        with pytest.raises(CheckpointInUse), owned(tmp_path):
            pytest.fail("owns it twice")
        with owned(tmp_path / "another"):
            pass


def test_ownership_ends_with_the_block_also_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), owned(tmp_path):
        raise RuntimeError
    with owned(tmp_path):
        pass


def test_inputs_may_come_behind_those_that_were_and_nowhere_else() -> None:
    kept: dict[str, Any] = {"links": [{"inputs": ["transactions", "labels"]}]}

    def said(*inputs: str) -> list[str]:
        return contract_differences(kept, {"links": [{"inputs": list(inputs)}]})

    assert said("transactions", "labels", "erasures") == []
    for inputs in (("transactions",), ("labels", "transactions"), ("transactions", "erasures", "labels")):
        assert len(said(*inputs)) == 1
