"""Compatibility of new code with a checkpoint, told without Spark and without touching either."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from millrace.errors import UserError
from millrace.runtime.apps import App
from millrace.runtime.contract import (
    CONTRACT_FILE,
    ENCRYPTION,
    RESTORED,
    check_contract,
    links_of,
    refuse_older,
    write_contract,
)
from millrace.runtime.plans import choose, settled
from millrace.runtime.settings import AppSettings
from millrace.state.keyring import CIPHER, configured_keys
from millrace.topology.contract import STATION, contract_of, station_contract


class Fit(msgspec.Struct):
    """Whether new code can go on from a checkpoint.

    Attributes:
        how: ``as it is``; ``from a savepoint``: another version of a process, which only a savepoint takes;
            ``refused``.
        changes: What is another, a line each.
        why: Why it is refused; else empty.
    """

    how: Literal["as it is", "from a savepoint", "refused"]
    changes: list[str] = []
    why: str = ""


def contract_of_app(
    app: App, settings: AppSettings, root: Path, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the contract with which an app would start on a folder.

    Args:
        app: The app, as it is now.
        settings: Its settings.
        root: The folder that holds the checkpoint.
        env: The environment that it would start in; default that of this process.

    Raises:
        UserError: It would not start there at all: another plan than the state can be brought to, keys that
            cannot be used.
    """
    topology = app.topology(settled(app, settings, root=root))
    choice = choose(settings, root, lambda: 0, topology.locality)
    topology = app.topology(settled(app, settings, choice.plan, root=root))
    groups: list[int] = []
    for link in topology.links:
        groups.append(link.key_groups or (groups[-1] if groups else settings.spark.key_groups))
    made = contract_of(topology, groups)
    if choice.plan == "station":
        kept = [link.process.stored_as for link in topology.links if link.process.keeps_broadcast()]
        made = {**made, STATION: station_contract(kept, choice.stations, topology.locality)}
    keys = configured_keys(settings.state.encryption.key_file, env)
    if keys is not None:
        made = {**made, ENCRYPTION: {"cipher": CIPHER, "keys": list(keys.ids)}}
    found: dict[str, Any] = json.loads(json.dumps(made))
    return found


def fit_of(app: App, settings: AppSettings, root: Path, env: Mapping[str, str] | None = None) -> Fit:
    """Return whether an app, as it is now, can go on from the checkpoint in a folder.

    It is judged by what a start would be judged by, on a copy of the contract.
    """
    try:
        kept = json.loads((root / CONTRACT_FILE).read_text())
        topology = app.topology(settled(app, settings, root=root))
        refuse_older(root, [link.process for link in topology.links])
        now = contract_of_app(app, settings, root, env)
        # A change of plan is made by the start itself, or refused by `choose`.
        as_kept = {**now, **({STATION: kept[STATION]} if STATION in kept else {})}
        if STATION not in kept:
            as_kept.pop(STATION, None)
    except (OSError, ValueError) as error:
        return Fit("refused", why=f"{root / CONTRACT_FILE} cannot be read: {error}")
    except UserError as error:
        return Fit("refused", why=str(error))
    return fit(kept, as_kept, root)


def fit(kept: Mapping[str, Any], now: Mapping[str, Any], root: Path) -> Fit:
    """Return whether what a contract says can be gone on from.

    Args:
        kept: The contract beside the checkpoint, incarnation included.
        now: The one of the new code.
        root: Where the checkpoint is, for what is told.
    """
    changes = changes_of(kept, now)
    why = _refusal(kept, now, root)
    if why is None:
        return Fit("as it is", changes)
    restored = {**copy.deepcopy(dict(kept)), RESTORED: {"savepoint": "upgrade"}}
    if _refusal(restored, now, root) is None:
        return Fit("from a savepoint", changes)
    return Fit("refused", changes, _refusal(restored, now, root) or why)


def changes_of(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what new code changes: versions of processes, states that come and go; a line each.

    >>> changes_of({"process": "P", "version": 1, "states": {"a": {}}}, {"process": "P", "version": 2,
    ...     "states": {"b": {}}})
    ['P: version 1 becomes 2', 'state b is new', 'state a goes: what it kept is dropped as keys are touched']
    """
    versions = {link["process"]: link.get("version") for link in links_of(kept)}
    found = [
        f"{link['process']}: version {versions[link['process']]} becomes {link.get('version')}"
        for link in links_of(now)
        if link["process"] in versions and versions[link["process"]] != link.get("version")
    ]
    before, after = kept.get("states", {}), now.get("states", {})
    read = {old: name for name, about in after.items() for old in (name, *about.get("alias", ()))}
    for name, about in after.items():
        old = next((one for one in (name, *about.get("alias", ())) if one in before), None)
        if old is None:
            found.append(f"state {name} is new")
        elif before[old] != about:
            found.append(f"state {name} is read as what it has become")
    found += [
        f"state {name} goes: what it kept is dropped as keys are touched"
        for name in before
        if name not in read
    ]
    return found


def _refusal(kept: Mapping[str, Any], now: Mapping[str, Any], root: Path) -> str | None:
    """Return why a start would refuse it; ``None``: it would not."""
    with tempfile.TemporaryDirectory() as folder:
        write_contract(Path(folder), dict(kept))
        try:
            check_contract(Path(folder), dict(now))
        except UserError as error:
            return str(error).replace(folder, str(root))
    return None
