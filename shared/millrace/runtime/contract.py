"""The contract of a checkpoint, written beside it and checked at every start; and its owner's lock."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import logging
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.errors import UserError
from millrace.state.evolution import state_differences
from millrace.state.layout import ENCODING_VERSION
from millrace.time.clock import CLOCK_VERSION

if TYPE_CHECKING:
    from millrace.process import KeyedProcess
    from millrace.state.conversion import Conversion

CONTRACT_FILE = "contract.json"
OWNER_FILE = "owner.lock"
#: Where a contract keeps the states of earlier versions of its process.
EARLIER = "earlier_states"
#: Where it keeps how state is encrypted: the cipher, and the ids of all keys that wrote, the newest first.
ENCRYPTION = "encryption"

#: Where it keeps that the checkpoint was made of a savepoint, and how its tables are written since.
RESTORED = "restored"

_log = logging.getLogger("millrace.contract")


class ContractMismatch(UserError):
    """The checkpoint was written by something that this process cannot go on from."""


class CheckpointInUse(UserError):
    """Another process runs a query on this checkpoint.

    Args:
        folder: The folder.
        owner: The process, as it told of itself: its pid and its host.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        super().__init__(
            f"the checkpoint in {folder} is in use by {owner}: one query per checkpoint; "
            "stop that process or use another storage.root"
        )
        self.owner = owner


def check_contract(folder: Path, contract: dict[str, Any]) -> str:
    """Compare ``contract`` with the one in ``folder``, writing it where there is none.

    States may change as far as what was kept can be read (:mod:`millrace.state.evolution`); the
    contract is then written anew, with the earlier states beside the new ones, since entries that
    nobody touches stay as they were written.

    Args:
        folder: The folder that holds the checkpoint.
        contract: What the process depends on, as plain data.

    Returns:
        The incarnation: an identity minted when the checkpoint was begun, part of what tables know
        their writer by.

    Raises:
        ContractMismatch: Something differs, or its state is encrypted with other keys than those that are
            configured; the message says what and what to do.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = check_contract(Path(folder), {"key_groups": 64})
        ...     first == check_contract(Path(folder), {"key_groups": 64})
        True
    """
    path = folder / CONTRACT_FILE
    refuse_older(folder)
    if not path.exists():
        if (folder / "checkpoint").exists():
            raise ContractMismatch(
                f"{folder / 'checkpoint'} has no {CONTRACT_FILE} beside it: it was not written by millrace, "
                "or the file was lost; use another storage.root or restore the file"
            )
        incarnation = uuid.uuid4().hex[:12]
        _write(path, {"incarnation": incarnation, **_with_current_key(contract)})
        return incarnation
    try:
        kept = json.loads(path.read_text())
        incarnation = str(kept.pop("incarnation"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractMismatch(f"{path} cannot be read ({error}): restore it from a backup") from error
    now = json.loads(json.dumps(contract))
    earlier = kept.pop(EARLIER, [])
    restored = kept.pop(RESTORED, None)
    if restored is not None:
        if "savepoint" in restored and not restored.get(
            "started"
        ):  # a savepoint may be gone on from by another version
            _take_over_versions(kept, now)
        now[RESTORED] = {**restored, "started": True}
        kept[RESTORED] = restored
    _take_over_keys(folder, kept, now)
    differences = contract_differences(kept, now)
    for states in (kept.get("states", {}), *earlier):
        differences += [d for d in state_differences(states, now.get("states", {})) if d not in differences]
    if differences:
        raise ContractMismatch(
            f"the checkpoint in {folder} cannot be continued: {'; '.join(differences)}. "
            "Go back to the process that wrote it, give a state that has become another a new name, "
            "or start anew with another storage.root"
        )
    if kept != now:
        _take_over(path, incarnation, kept, now, earlier)
    return incarnation


def is_older(contract: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is of the time when the engine kept the clock."""
    return any("time_domain" in link for link in links_of(contract))


def links_of(contract: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a contract says of each process of a chain; of one by itself, the whole."""
    links: list[dict[str, Any]] = contract.get("links") or [dict(contract)]
    return links


def conversions_of(
    contract: Mapping[str, Any], processes: Iterable[KeyedProcess[Any, Any]]
) -> dict[str, Conversion]:
    """Return what is to be done with the state of a checkpoint, by process.

    Args:
        contract: The contract beside it.
        processes: The processes as they are now; those are meant whose version was another one, which they
            say how to convert.
    """
    of = {process.stored_as: process for process in processes}
    found: dict[str, Conversion] = {}
    for link in links_of(contract):
        process = of.get(str(link.get("process")))
        if process is not None and link["version"] != process.version:
            conversion = process.converts.get(link["version"])
            if conversion is not None:
                found[process.stored_as] = conversion
    return found


def states_of(contract: Mapping[str, Any], process: str) -> dict[str, Any]:
    """Return what a contract says of the states of a process, by their own names."""
    states: dict[str, Any] = contract.get("states", {})
    if "links" not in contract:
        return states
    lead = f"{process}."

    def own(about: dict[str, Any]) -> dict[str, Any]:
        names = {"alias": [old.removeprefix(lead) for old in about["alias"]]} if "alias" in about else {}
        return {**about, **names}

    return {name[len(lead) :]: own(about) for name, about in states.items() if name.startswith(lead)}


def with_own_clock(contract: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contract of a checkpoint that was converted."""
    own = {"clock": CLOCK_VERSION, "encoding": ENCODING_VERSION}

    def brought(link: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in {**link, **own}.items() if name != "time_domain"}

    if "links" in contract:
        return {**contract, "links": [brought(link) for link in contract["links"]]}
    return brought(contract)


def refuse_older(folder: Path, processes: Iterable[KeyedProcess[Any, Any]] = ()) -> None:
    """Refuse a checkpoint that is to be converted first; better before Spark is started.

    Args:
        folder: The folder that holds the contract.
        processes: The processes as they are now.

    Raises:
        ContractMismatch: It is of the time when the engine kept the clock, or of a version of a process whose
            state has become something else; the message names the command that converts it.
    """
    path = folder / CONTRACT_FILE
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return  # there is none, or whoever reads it next says what is wrong with it
    if isinstance(kept, dict) and is_older(kept):
        raise ContractMismatch(
            f"the checkpoint in {folder} is of a version in which Spark kept the clock: bring it over with: "
            f"millrace convert {folder}"
        )
    if isinstance(kept, dict) and (old := conversions_of(kept, processes)):
        raise ContractMismatch(
            f"the checkpoint in {folder} is of an earlier version of {', '.join(old)}: bring it over with: "
            f"millrace convert {folder}"
        )


def contract_differences(kept: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what of a checkpoint's contract is another now, a text each; states are not looked at."""
    return _differences(_without_states(_with_time(kept, now)), _without_states(now))


def _without_states(contract: dict[str, Any]) -> dict[str, Any]:
    # States are read by name: their order, which "layout" lists, says nothing.
    return {n: value for n, value in contract.items() if n not in ("states", "layout", ENCRYPTION, RESTORED)}


def _take_over_versions(kept: dict[str, Any], now: dict[str, Any]) -> None:
    """Let the processes have other versions: that is what their savepoint was made for."""
    for before, after in _links(kept, now):
        if "version" in before and "version" in after:
            before["version"] = after["version"]


def _links(kept: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield what is said of each process of a chain (of all, where there is one), then and now."""
    return zip([kept, *kept.get("links", ())], [now, *now.get("links", ())], strict=False)


def _with_time(kept: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return a contract as if keys had had the clocks that they have now, which begin where the stream is."""
    found = copy.deepcopy(kept)
    for before, after in _links(found, now):
        if "time" in after:
            before.setdefault("time", after["time"])
    return found


def _with_current_key(contract: dict[str, Any]) -> dict[str, Any]:
    """Return a contract to begin with: of the configured keys only the first one will have written."""
    if ENCRYPTION not in contract:
        return contract
    about = contract[ENCRYPTION]
    return {**contract, ENCRYPTION: {**about, "keys": list(about["keys"][:1])}}


def _take_over_keys(folder: Path, kept: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse keys that do not fit the state; write into ``now`` which keys may stand in it.

    What nobody touches stays as it was written, so a key that wrote once may be needed for ever.
    """
    before, after = kept.get(ENCRYPTION), now.get(ENCRYPTION)
    if before is None and after is None:
        return
    if before is None:
        raise ContractMismatch(
            f"the state in {folder} is not encrypted, and state keys are configured: take them away, or "
            f"encrypt it with: millrace rescale {folder} --reseal --new-key-file FILE"
        )
    wrote = before["keys"]
    if after is None:
        raise ContractMismatch(
            f"the state in {folder} is encrypted with key {', '.join(wrote)}: configure it with "
            "state.encryption.key_file or MILLRACE_STATE_SECRET_KEYS"
        )
    if missing := [key for key in wrote if key not in after["keys"]]:
        raise ContractMismatch(
            f"the state in {folder} is encrypted with key {', '.join(missing)}, and the configured keys are "
            f"{', '.join(after['keys'])}: add what is missing behind the first one"
        )
    if before["cipher"] != after["cipher"]:
        raise ContractMismatch(
            f"the state in {folder} is encrypted with {before['cipher']}, this is {after['cipher']}"
        )
    current = after["keys"][0]
    now[ENCRYPTION] = {**after, "keys": [current, *(key for key in wrote if key != current)]}


def _take_over(
    path: Path, incarnation: str, kept: dict[str, Any], now: dict[str, Any], earlier: list[Any]
) -> None:
    """Write the contract of a process whose states have changed."""
    before, after = kept.get("states", {}), now.get("states", {})
    read = {n for name, state in after.items() for n in (name, *state.get("alias", ()))}
    for name in before.keys() - read:
        _log.warning("state '%s' is no longer declared: what it kept is dropped as keys are touched", name)
    if before != after and before not in earlier:
        earlier = [*earlier, before]
    _write(path, {"incarnation": incarnation, **now, **({EARLIER: earlier} if earlier else {})})


def _has_more(kept: Any, now: Any) -> bool:
    """Return whether inputs have come behind those that there were: what waits is kept by their places."""
    return isinstance(kept, list) and isinstance(now, list) and now[: len(kept)] == kept


def _differences(kept: Any, now: Any, at: str = "") -> list[str]:
    if isinstance(kept, dict) and isinstance(now, dict):
        found: list[str] = []
        for name in sorted({*kept, *now}):
            place = f"{at}.{name}" if at else name
            if name not in kept:
                found.append(f"{place} is new ({json.dumps(now[name])})")
            elif name not in now:
                found.append(f"{place} is gone (was {json.dumps(kept[name])})")
            elif name != "inputs" or not _has_more(kept[name], now[name]):
                found += _differences(kept[name], now[name], place)
        return found
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        pairs = list(zip(kept, now, strict=True))
        if all(isinstance(one, dict) for pair in pairs for one in pair):  # the links of a chain
            return [d for n, (old, new) in enumerate(pairs) for d in _differences(old, new, f"{at}[{n}]")]
    return [] if kept == now else [f"{at} was {json.dumps(kept)}, is now {json.dumps(now)}"]


def write_contract(folder: Path, contract: dict[str, Any]) -> None:
    """Write the contract of a checkpoint that was made otherwise than by a query."""
    _write(folder / CONTRACT_FILE, contract)


def restored_from(folder: Path) -> dict[str, Any]:
    """Return how the checkpoint in a folder was restored; nothing where it was not."""
    path = folder / CONTRACT_FILE
    return json.loads(path.read_text()).get(RESTORED) or {} if path.exists() else {}


def _write(path: Path, contract: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(contract, indent=2, sort_keys=True) + "\n")
    part.replace(path)


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own the checkpoint in ``folder`` while the block runs; a process that dies lets go of it.

    Raises:
        CheckpointInUse: Another process owns it; the message names its pid.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / OWNER_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "an unknown process"
            raise CheckpointInUse(folder, owner) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
