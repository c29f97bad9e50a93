"""The topology's part of a checkpoint's contract, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace.process import KeyedProcess, kept_states, order_of
from millrace.state.layout import ENCODING_VERSION
from millrace.state.schema import describe_state
from millrace.time.clock import CLOCK_VERSION
from millrace.topology.definition import Link, Topology
from millrace.topology.keys import FirstOf

#: Where a contract keeps that all processes run in a station, and which of them keep broadcast state.
STATION: Final = "station"


def contract_of(topology: Topology, key_groups: Sequence[int]) -> dict[str, Any]:
    """Return the contract of a topology.

    Args:
        topology: The topology.
        key_groups: Number of key groups of each link.
    """
    links = [
        _of_link(topology, link, groups) for link, groups in zip(topology.links, key_groups, strict=True)
    ]
    if len(links) == 1:
        return links[0]
    return {
        "process": " > ".join(link["process"] for link in links),
        "links": [_without_states(link) for link in links],
        "states": {
            name: about
            for link in links
            for name, about in led_states(link["process"], link["states"]).items()
        },
    }


def station_contract(broadcast: Sequence[str], stations: int, locality: str | None) -> dict[str, Any]:
    """Return what a contract says of a station.

    Args:
        broadcast: Names of the processes that keep broadcast state.
        stations: How many stations there are.
        locality: The field that tells of which one a key is.

    Example:
        >>> station_contract(["Cards"], 1, None)
        {'broadcast': ['Cards']}
    """
    several = {"stations": stations, "locality": {"key": locality, "hash": "crc32"}} if stations > 1 else {}
    return {"broadcast": list(broadcast), **several}


def stations_of(contract: Mapping[str, Any]) -> int:
    """Return how many stations the contract of a checkpoint has; 0: it is a chain's.

    >>> stations_of({}), stations_of({STATION: {"broadcast": []}})
    (0, 1)
    """
    about = contract.get(STATION)
    return 0 if about is None else int(about.get("stations", 1))


def key_names(topology: Topology, link: Link) -> tuple[str, ...]:
    """Return the names of the parts of a link's key; what inputs name differently has all its names."""
    if link.takes:
        return joined_names([taken.key for taken in link.takes])
    return joined_names([one.parts for one in topology.inputs.values()])


def joined_names(keys: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Return the names of the parts of a key that comes by several inputs.

    Of the first of several fields it is the last, by which events go that have none of the others: so a key
    may come to be led by fields that earlier events did not have.

    >>> joined_names([["unit", "shop"], ["machine", "shop"]])
    ('unit = machine', 'shop')
    >>> joined_names([[FirstOf(("fleet", "machine"))], ["machine"]])
    ('machine',)
    """
    named = [[_name(part) for part in parts] for parts in keys]
    return tuple(" = ".join(dict.fromkeys(names)) for names in zip(*named, strict=True))


def _name(part: Any) -> str:
    if isinstance(part, FirstOf) and len(part.parts) > 1:
        part = part.parts[-1]
    return part if isinstance(part, str) else "(expression)"


def _of_link(topology: Topology, link: Link, key_groups: int) -> dict[str, Any]:
    process = link.process
    return {
        **contract_of_process(process),
        "key": list(key_names(topology, link)),
        **({"inputs": process.stored_inputs()} if _by_one_stream(topology, link) else {}),
        "key_groups": key_groups,
        "hash": "crc32",
        "encoding": ENCODING_VERSION,
        "clock": CLOCK_VERSION,
        **({"takes": _taken(topology, link)} if link.takes else {}),
    }


def contract_of_process(process: KeyedProcess[Any, Any]) -> dict[str, Any]:
    """Return what a checkpoint depends on of a process, wherever it stands."""
    return {
        "process": process.stored_as,
        "version": process.version,
        "order": order_of(process).mode,
        **({"time": "key"} if order_of(process).by_key else {}),
        **({"definition": described} if (described := process.describe()) else {}),
        "states": {s.stored_name: describe_state(s) for s in kept_states(process)},
    }


def _by_one_stream(topology: Topology, link: Link) -> bool:
    """Return whether a process has several inputs, and one stream brings them all."""
    if not link.process.inputs or link.takes:
        return bool(link.process.inputs)
    return len({one.stream for one in topology.inputs.values()}) == 1


def _taken(topology: Topology, link: Link) -> str | dict[str, str]:
    """Return what a link takes: of the link before it by the output's own name, of others led by theirs."""
    before = topology.links[[one.name for one in topology.links].index(link.name) - 1].name
    inputs = dict(zip(link.process.inputs, link.process.stored_inputs(), strict=True))
    named = {}
    for taken in link.takes:
        of = topology.link(taken.link).process
        output = of.stored_outputs()[taken.output]
        stored = output if taken.link == before else f"{of.stored_as}.{output}"
        named[inputs.get(taken.input, taken.input)] = stored
    return named[""] if list(named) == [""] else named


def _without_states(contract: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in contract.items() if name != "states"}


def led_states(name: str, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of one of several processes as a contract has them, led by its name."""

    def about(state: dict[str, Any]) -> dict[str, Any]:
        alias = {"alias": [f"{name}.{old}" for old in state["alias"]]} if "alias" in state else {}
        return {**state, **alias}

    return {f"{name}.{state}": about(described) for state, described in states.items()}
