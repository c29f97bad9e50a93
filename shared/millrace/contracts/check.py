"""The check of contracts: classes against git, and every version against the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from millrace.contracts.compatibility import Mode, breaks, without_bounds
from millrace.contracts.model import Contract, ContractError, ContractName, stored
from millrace.contracts.schema import dumps, meaning, resolved
from millrace.local.private import make_shared, share


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a contract.

    Attributes:
        name: Which contract.
        problem: What, and what to do, in one line.
    """

    name: ContractName
    problem: str

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


def check(
    contracts: Sequence[Contract],
    folder: Path,
    mode: Mode = Mode.backward,
    *,
    numbered: bool = False,
    narrowed: Mapping[str, str] = MappingProxyType({}),
) -> list[Finding]:
    """Return what is wrong with the contracts of an app; empty if nothing is.

    Args:
        contracts: What its classes say.
        folder: Its contracts in git.
        mode: Which versions must understand each other.
        numbered: Fields must also keep their places, from which Protobuf has its numbers.
        narrowed: Contract → why its bounds are narrower than those of the version before: bounds alone are
            then not compared with that one's.

    Raises:
        ContractError: A file in the folder is no contract.
    """
    kept = stored(folder)
    found = [finding for contract in contracts for finding in _unlike(contract, kept)]
    newest = {c.name.name: c.name for c in contracts}
    for name in kept:
        if name.name not in newest:
            found.append(Finding(name, "no class is registered for it: register one, or remove its files"))
        elif name > newest[name.name]:
            found.append(Finding(name, f"the newest class is {newest[name.name]}: register this version's"))
    # A version that is not in git yet is judged as its class says, so that both problems show at once.
    versions = dict(sorted({**{c.name: c.schema() for c in contracts}, **kept}.items()))
    return found + _broken(versions, mode, numbered, narrowed)


def generate(
    contracts: Sequence[Contract], folder: Path, *, replace: bool = False
) -> list[tuple[ContractName, str]]:
    """Write the contracts that are missing from a folder.

    A file that says the same stays as it is, its wording too. One that says something else is a version that
    consumers may rely on: it is replaced only if asked.

    Args:
        contracts: What the classes say.
        folder: Where they go; made if it is missing.
        replace: Write every file anew, also those that say something else.

    Returns:
        Each contract with what was done: ``written``, ``replaced`` or ``unchanged``.

    Raises:
        ContractError: A class says something else than its version in the folder, and ``replace`` is not
            given; nothing is written then.
    """
    kept = stored(folder)
    changed = [] if replace else [f for c in contracts if c.name in kept for f in _unlike(c, kept)]
    if changed:
        raise ContractError(
            f"{changed[0]}; nothing was written; to change a version that nobody has yet, give --replace"
        )
    done = []
    for contract in contracts:
        path, text = folder / contract.name.file, dumps(contract.schema())
        if contract.name in kept and (not replace or path.read_text("utf-8") == text):
            done.append((contract.name, "unchanged"))
            continue
        try:
            make_shared(folder)
            path.write_text(text, "utf-8", newline="\n")
            share(path)
        except OSError as error:
            raise ContractError(f"cannot write {path}: {error.strerror}") from error
        done.append((contract.name, "replaced" if contract.name in kept else "written"))
    return done


def _unlike(contract: Contract, kept: Mapping[ContractName, Mapping[str, Any]]) -> list[Finding]:
    name = contract.name
    if name not in kept:
        return [Finding(name, "it is not in git: run `millrace contracts generate`")]
    schema = contract.schema()
    if meaning(kept[name]) == meaning(schema):
        return []
    differs = breaks(kept[name], schema, Mode.full, names=("the file", "the class"))
    # New optional fields and other defaults break nobody, and are a difference all the same.
    told = (
        f"{differs[0].where or 'the event'}: {differs[0].why}" if differs else _differing(kept[name], schema)
    )
    more = f" (and {len(differs) - 1} more)" if len(differs) > 1 else ""
    raised = ContractName(name.name, name.version + 1)
    return [Finding(name, f"the class says something else than the file: {told}{more}; make it {raised}")]


def _differing(kept: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    before, after = meaning(kept).get("properties", {}), meaning(now).get("properties", {})
    parts = [f"{name} is new" for name in after if name not in before]
    parts += [f"{name} is gone" for name in before if name not in after]
    for name in before:
        if name in after and before[name] != after[name]:
            defaults = (before[name].get("default", "none"), after[name].get("default", "none"))
            told = "the default of {} was {} and is {}".format(name, *defaults)
            parts.append(told if defaults[0] != defaults[1] else f"{name} differs")
    return ", ".join(parts) or "they differ in more than wording"


def _broken(
    versions: Mapping[ContractName, Mapping[str, Any]],
    mode: Mode,
    numbered: bool,
    narrowed: Mapping[str, str],
) -> list[Finding]:
    found, names = [], list(versions)
    narrower = {
        str(after)
        for before, after in pairwise(names)
        if before.name == after.name and breaks(versions[before], versions[after])
    }
    later = {str(after) for before, after in pairwise(names) if before.name == after.name}
    for name in narrowed:
        if name in later and name not in narrower:
            why = "it is said to be narrower than the version before it, and is not"
            found.append(Finding(ContractName.parse(name), why))
    for before, after in pairwise(names):
        if before.name != after.name:
            continue
        called = (f"v{before.version}", f"v{after.version}")
        old, new = versions[before], versions[after]
        if str(after) in narrowed:
            old, new = without_bounds(resolved(old)), without_bounds(resolved(new))
        told = breaks(old, new, mode, names=called)
        found += [Finding(after, str(one)) for one in told]
        if numbered:
            from millrace.contracts.protobuf import numbering_breaks

            moved = numbering_breaks(versions[before], versions[after])
            found += [Finding(after, f"not Protobuf compatible: {one}") for one in moved]
    return found
