"""Stages of a query: the process behind each stateful operator, by the contract beside its checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.checkpoints.checkpoint import Checkpoint, CheckpointError
from millrace.host.groups import group_labels, key_group, station_of
from millrace.host.station import VARIABLE
from millrace.process import KeyedProcess
from millrace.runtime.contract import ENCRYPTION
from millrace.state.keyring import KeyReference, configured_keys
from millrace.topology.contract import STATION, stations_of


@dataclass(frozen=True)
class Stage:
    """A process of a query.

    Attributes:
        operator: Number of its stateful operator.
        process: Its name.
        key: Fields of its key.
        key_groups: Number of its key groups.
        has_broadcast: Whether it keeps broadcast state.
        link: Its number among the processes of a station; ``None``: it has an operator of its own.
        stations: How many stations there are; each has keys of all its key groups.
    """

    operator: int
    process: str
    key: tuple[str, ...]
    key_groups: int
    has_broadcast: bool
    link: int | None = None
    stations: int = 1

    def place(self, key_text: str) -> tuple[int, int]:
        """Return the station of a key, and the label of its key group."""
        label = group_labels(self.key_groups)[key_group(key_text, self.key_groups)]
        return 0 if self.stations == 1 else station_of(key_text, self.stations), label


def stages_of(checkpoint: Checkpoint, batch: int) -> list[Stage]:
    """Return the processes of a query in the order of its chain.

    Raises:
        CheckpointError: The checkpoint's operators are not those of its contract.
    """
    contract = checkpoint.contract()
    links: list[dict[str, Any]] = contract.get("links") or [contract]
    about = contract.get(STATION)
    if about is not None:
        stations = [o for o in checkpoint.operators(batch) if VARIABLE in o.variables]
        if len(stations) != 1:
            raise CheckpointError(
                f"{checkpoint.folder} has {len(stations)} operators with stations, its contract names one: "
                "they do not belong together"
            )
        return [
            Stage(
                stations[0].id,
                link["process"],
                tuple(link["key"]),
                int(link["key_groups"]),
                link["process"] in about["broadcast"],
                place,
                stations_of(contract),
            )
            for place, link in enumerate(links)
        ]
    operators = [o for o in checkpoint.operators(batch) if {"header", "pages"} <= set(o.variables)]
    if len(operators) != len(links):
        raise CheckpointError(
            f"{checkpoint.folder} has {len(operators)} operators with key groups, its contract names "
            f"{len(links)} processes: they do not belong together"
        )
    # Spark numbers the operators from the end of the query.
    found = zip(links, sorted(operators, key=lambda o: -o.id), strict=True)
    return [
        Stage(o.id, link["process"], tuple(link["key"]), int(link["key_groups"]), "broadcast" in o.variables)
        for link, o in found
    ]


def stage_of(checkpoint: Checkpoint, batch: int, process: str | None) -> Stage:
    """Return the process of that name; of a query with one, it need not be named.

    Raises:
        CheckpointError: There is none of that name, or several and none is named.
    """
    return named_stage(stages_of(checkpoint, batch), process)


def named_stage(stages: Sequence[Stage], process: str | None) -> Stage:
    """Return the one of some processes that has a name; of one, it need not be named.

    Raises:
        CheckpointError: There is none of that name, or several and none is named.
    """
    chosen = [s for s in stages if process in (None, s.process)]
    if len(chosen) != 1:
        names = ", ".join(s.process for s in stages)
        raise CheckpointError(
            f"the query has the processes {names}: name one with --process"
            if process is None
            else f"the query has no process {process}; it has {names}"
        )
    return chosen[0]


def keys_for(contract: Mapping[str, Any], key_file: str | None = None) -> KeyReference | None:
    """Return the keys that open the state of a checkpoint, ``None`` where it is in clear.

    Args:
        contract: The contract beside it.
        key_file: The file of keys, if one is named.

    Raises:
        CheckpointError: It is encrypted and no keys are configured, or others.
    """
    about = contract.get(ENCRYPTION)
    if about is None:
        return None
    found = configured_keys(key_file)
    missing = [k for k in about["keys"] if found is None or k not in found.ids]
    if missing:
        raise CheckpointError(
            f"the state is encrypted with key {', '.join(missing)}: name the file that has it with "
            "--key-file, or set MILLRACE_STATE_SECRET_KEYS"
        )
    return found


def load_process(name: str) -> KeyedProcess[Any, Any]:
    """Return the process that ``module:Class`` (or ``module:instance``) names.

    Raises:
        CheckpointError: There is none.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{name} cannot be loaded: {error}") from error
    made = found() if isinstance(found, type) else found
    if not isinstance(made, KeyedProcess):
        raise CheckpointError(f"{name} is no process: name a KeyedProcess as module:Class")
    return made
