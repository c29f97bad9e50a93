"""Conversion of a checkpoint of an earlier version: its clock, its state, its contract.

Everything is written anew in a copy, which takes the place of the checkpoint when it is complete. What it
is to become is known before: where the next start would refuse it, nothing is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millrace.checkpoints.rescale import Regroup, Rescaled, RescaleError, rekey_owned
from millrace.runtime.contract import (
    EARLIER,
    ENCRYPTION,
    RESTORED,
    contract_differences,
    conversions_of,
    is_older,
    links_of,
    owned,
    states_of,
    with_own_clock,
)
from millrace.state.evolution import state_differences
from millrace.state.layout import ENCODING_VERSION
from millrace.topology.contract import STATION, contract_of, contract_of_process, led_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.checkpoints.checkpoint import Checkpoint
    from millrace.process import KeyedProcess
    from millrace.topology import Topology

#: What is said of a process in a contract, and may be another after a conversion of its state.
_OF_PROCESS: Final = ("version", "order", "time", "definition")
_OF_LINK: Final = (*_OF_PROCESS, "inputs", "key", "takes")
#: What is said of all processes, and of a process where it is the only one.
_OF_CHAIN: Final = ("incarnation", EARLIER, STATION)


def convert(
    spark: SparkSession,
    checkpoint: Checkpoint,
    *,
    topology: Topology | None = None,
    processes: Sequence[KeyedProcess[Any, Any]] = (),
    key_file: str | None = None,
) -> Rescaled:
    """Bring the checkpoint of a stopped query over to this version.

    Where Spark kept the clock, the watermark becomes where the query's own clock begins, so that no window
    comes twice. State is brought into the form that the processes have now, by their ``converts`` where it
    has become something else; without any process it stays the bytes that it is.

    Args:
        spark: A session.
        checkpoint: The checkpoint; it stays what it is unless all goes well.
        topology: The app's topology as it is now.
        processes: In place of a topology: processes of the query as they are now.
        key_file: The file of keys that opens the state, if it is encrypted.

    Raises:
        RescaleError: There is nothing to convert, the next start would refuse what it would become, or a
            batch stands in a table only.
        CheckpointInUse: The query runs.
    """
    with owned(checkpoint.root):
        contract = checkpoint.contract()
        if topology is not None:
            processes = [link.process for link in topology.links]
        if not needs_conversion(contract, processes):
            raise RescaleError(f"{checkpoint.folder} is of this version already: there is nothing to convert")
        becomes = converted(contract, processes, topology)
        return rekey_owned(spark, checkpoint, processes=processes, key_file=key_file, becomes=becomes)


def regroup(
    spark: SparkSession,
    checkpoint: Checkpoint,
    topology: Topology,
    by: Regroup,
    *,
    key_file: str | None = None,
) -> Rescaled:
    """Give the entries of a stopped query the keys that its settings of now give them.

    Args:
        spark: A session.
        checkpoint: The checkpoint; it stays what it is unless all goes well.
        topology: The topology by the settings of now: the same processes, by other definitions.
        by: What gives entries other keys.
        key_file: The file of keys that opens the state, if it is encrypted.

    Raises:
        RescaleError: The topology differs by more than definitions, or there is nothing to change.
        UserError: Something has no place among the new keys.
        CheckpointInUse: The query runs.
    """
    processes = [link.process for link in topology.links]
    with owned(checkpoint.root):
        contract = checkpoint.contract()
        if needs_conversion(contract, processes):
            raise RescaleError(f"{checkpoint.folder} is of an earlier version: `millrace convert` it first")
        kept = [link["process"] for link in links_of(contract)]
        if kept != (now := [process.stored_as for process in processes]):
            raise RescaleError(
                f"by these settings the processes are {', '.join(now)}, and the checkpoint is of "
                f"{', '.join(kept)}: only keys can change"
            )
        made = _of_topology(contract, topology)
        if STATION in contract:
            made[STATION] = contract[STATION]
        if contract_differences(contract, made) == []:
            raise RescaleError(f"{checkpoint.folder} has these keys already")
        links = [
            _with(link, after, ("definition",))
            for link, after in zip(links_of(contract), links_of(made), strict=True)
        ]
        as_if = {**contract, "links": links} if "links" in contract else links[0]
        if differences := contract_differences(as_if, made):
            raise RescaleError(f"the checkpoint cannot be given other keys: {'; '.join(differences)}")
        return rekey_owned(
            spark, checkpoint, processes=processes, key_file=key_file, becomes=made, regroup=by
        )


def extend(
    spark: SparkSession, checkpoint: Checkpoint, topology: Topology, *, key_file: str | None = None
) -> Rescaled:
    """Let a stopped query have more processes: those that its checkpoint does not have begin with nothing.

    What they would have heard before, they have not: they begin where the query stands.

    Args:
        spark: A session.
        checkpoint: The checkpoint; it stays what it is unless all goes well.
        topology: The topology as it is to be: all processes that there are, in their order, and others.
        key_file: The file of keys that opens the state, if it is encrypted.

    Raises:
        RescaleError: A process would be gone, there is no other, or one that stays is not what it was.
        CheckpointInUse: The query runs.
    """
    processes = [link.process for link in topology.links]
    with owned(checkpoint.root):
        contract = checkpoint.contract()
        if needs_conversion(contract, processes):
            raise RescaleError(f"{checkpoint.folder} is of an earlier version: `millrace convert` it first")
        kept, now = [link["process"] for link in links_of(contract)], [p.stored_as for p in processes]
        begun = [name for name in now if name not in kept]
        if [name for name in now if name in kept] != kept:
            raise RescaleError(
                f"by these settings the processes are {', '.join(now)}, and the checkpoint is of "
                f"{', '.join(kept)}: what it has kept would be lost"
            )
        if not begun:
            raise RescaleError(f"{checkpoint.folder} has these processes already")
        made = extended(contract, topology)
        return rekey_owned(
            spark, checkpoint, processes=processes, key_file=key_file, becomes=made, begun=begun
        )


def extended(contract: Mapping[str, Any], topology: Topology) -> dict[str, Any]:
    """Return the contract that a checkpoint has with more processes.

    Args:
        contract: The one that it has.
        topology: The topology as it is to be.

    Raises:
        RescaleError: A process that stays is not what it was; the message says what is another.
    """
    of = {link["process"]: link for link in links_of(contract)}
    groups: list[int] = []
    for link in topology.links:
        known = of.get(link.process.stored_as)
        fewest = groups[-1] if groups else int(links_of(contract)[0]["key_groups"])
        groups.append(int(known["key_groups"]) if known else link.key_groups or fewest)
    made: dict[str, Any] = json.loads(json.dumps(contract_of(topology, groups)))
    made |= {name: contract[name] for name in ("incarnation", ENCRYPTION, RESTORED) if name in contract}
    if STATION in contract:
        broadcast = [link.process.stored_as for link in topology.links if link.process.keeps_broadcast()]
        made[STATION] = {**contract[STATION], "broadcast": broadcast}
    taken, now = _takes_of(links_of(made)), {link["process"]: link for link in links_of(made)}
    wrong: list[str] = []
    for name, takes in _takes_of(of.values()).items():
        alone = {about: value for about, value in of[name].items() if about not in _OF_CHAIN}
        was: dict[str, Any] = {**alone, "takes": takes}
        is_now: dict[str, Any] = {**now[name], "takes": taken[name]}
        found = [
            *contract_differences(was, is_now),
            *state_differences(states_of(contract, name), states_of(made, name)),
        ]
        wrong += [f"{name}: {said}" for said in found]
    if wrong:
        raise RescaleError(f"the checkpoint cannot be given other processes: {'; '.join(wrong)}")
    return made


def _takes_of(links: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str] | None]:
    """Return what each link of a chain takes, by input: outputs led by the names of their processes."""
    found: dict[str, dict[str, str] | None] = {}
    for link in links:
        taken, before = link.get("takes"), next(reversed(found), "")
        named = {"": taken} if isinstance(taken, str) else taken
        found[link["process"]] = (
            None
            if named is None
            else {
                name: output if output.partition(".")[0] in found else f"{before}.{output}"
                for name, output in named.items()
            }
        )
    return found


def needs_conversion(contract: Mapping[str, Any], processes: Sequence[KeyedProcess[Any, Any]]) -> bool:
    """Return whether a checkpoint is to be converted before these processes can go on from it."""
    encodings = {link.get("encoding") for link in links_of(contract)}
    return is_older(contract) or encodings != {ENCODING_VERSION} or bool(conversions_of(contract, processes))


def converted(
    contract: Mapping[str, Any],
    processes: Sequence[KeyedProcess[Any, Any]],
    topology: Topology | None = None,
) -> dict[str, Any]:
    """Return the contract that a checkpoint has when it has been converted.

    Args:
        contract: The one that it has.
        processes: Processes of the query as they are now.
        topology: The topology that they make, if it is known.

    Raises:
        RescaleError: The next start would refuse it; the message says why.
    """
    own = with_own_clock(contract)
    kept = [link["process"] for link in links_of(own)]
    if topology is not None and kept != (now := [process.stored_as for process in processes]):
        raise RescaleError(
            f"the checkpoint is of the processes {', '.join(kept)}, these are {', '.join(now)}: use the "
            "settings that it was written with"
        )
    made = _of_processes(own, processes) if topology is None else _of_topology(own, topology)
    conversions = conversions_of(contract, processes)
    differences = contract_differences(_as_if(own, made, set(conversions)), made)
    earlier = contract.get(EARLIER, [])
    for name in kept:
        after, conversion = states_of(made, name), conversions.get(name)
        compare = state_differences if conversion is None else conversion.state_differences
        for states in (own, *({**own, "states": one} for one in earlier)):
            found = [f"{name}: {said}" for said in compare(states_of(states, name), after)]
            differences += [said for said in found if said not in differences]
    if differences:
        raise RescaleError(f"the checkpoint cannot be converted: {'; '.join(differences)}")
    return made


def _of_topology(own: Mapping[str, Any], topology: Topology) -> dict[str, Any]:
    """Return the contract of a topology over the key groups, and under the keys, of a checkpoint."""
    groups = [int(link["key_groups"]) for link in links_of(own)]
    made: dict[str, Any] = json.loads(json.dumps(contract_of(topology, groups)))
    return {**{name: own[name] for name in ("incarnation", ENCRYPTION, RESTORED) if name in own}, **made}


def _of_processes(own: Mapping[str, Any], processes: Sequence[KeyedProcess[Any, Any]]) -> dict[str, Any]:
    """Return a contract with what some of its processes are now."""
    now = {p.stored_as: json.loads(json.dumps(contract_of_process(p))) for p in processes}
    links: list[dict[str, Any]] = []
    states: dict[str, Any] = {}
    for link in links_of(own):
        name = link["process"]
        about = now.get(name)
        of_link = states_of(own, name) if about is None else about["states"]
        states |= led_states(name, of_link) if "links" in own else of_link
        links.append(link if about is None else _with(link, about, _OF_PROCESS))
    made = {**own, "links": links} if "links" in own else links[0]
    if now.keys() >= {link["process"] for link in links}:
        made.pop(EARLIER, None)  # nothing of them is left
    return {**made, "states": states}


def _as_if(own: dict[str, Any], made: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a contract as if what a conversion may change had been what it is then."""
    own = {name: value for name, value in own.items() if name != EARLIER}
    links = [
        _with(link, now, _OF_LINK) if link["process"] in names else link
        for link, now in zip(links_of(own), links_of(made), strict=True)
    ]
    return {**own, "links": links} if "links" in own else links[0]


def _with(link: Mapping[str, Any], now: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    rest = {name: value for name, value in link.items() if name not in names}
    return {**rest, **{name: now[name] for name in names if name in now}}
