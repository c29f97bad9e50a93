"""Operators: names with a role and a token, of which only the hash is kept.

The roster is a JSON file. Where there is none, names are free text. Where there is one, whoever changes
something shows a token, and goes by the name that the token was given to. A file that cannot be read, that
others may write, or that is named in the settings and is not there, lets nobody do anything.

A token is ``mr-ID-SECRET``: the id finds the operator, and of the secret, 256 random bits, the roster has a
hash by scrypt (RFC 7914) with a salt of its own. Roles are steps: who may approve may decide as well, and
who may decide may look.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from millrace.dead_letters import NOT_JSON
from millrace.errors import UserError
from millrace.local.home import home
from millrace.local.private import open_private

if TYPE_CHECKING:
    from millrace.runtime.settings import AppSettings

__all__ = ["COST", "Cost", "Operator", "Role", "Roster", "RosterError", "RosterFile", "roster_file"]

#: Name of the file, unless the setting ``operators.file`` says otherwise.
FILE_NAME: Final = "operators.json"
_LEADS: Final = "mr"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_TOKEN: Final = re.compile(r"mr-([0-9a-f]{16})-([A-Za-z0-9_-]{43})", re.ASCII)
_MOST_MEMORY: Final = 64 * 1024 * 1024
#: A roster is read whole.
_LARGEST: Final = 4 * 1024 * 1024

T = TypeVar("T")


class RosterError(UserError):
    """The roster cannot be used, or what was asked of it does not fit."""


class Role(StrEnum):
    """What an operator may do; each may do what those before it may."""

    look = "look"
    decide = "decide"
    approve = "approve"

    def covers(self, needed: Role) -> bool:
        """Say whether who has this role may do what another one is needed for.

        >>> Role.approve.covers(Role.decide), Role.look.covers(Role.decide)
        (True, False)
        """
        steps = list(Role)
        return steps.index(self) >= steps.index(needed)


class Cost(NamedTuple):
    """What one hash costs, by scrypt's parameters: ``128 * n * r`` bytes, and time for ``n * r * p``.

    Attributes:
        n: Cost, a power of two.
        r: Size of a block.
        p: How often.
    """

    n: int
    r: int
    p: int

    def hash(self, secret: str, salt: bytes) -> bytes:
        """Return the 32 bytes of a secret's hash."""
        return hashlib.scrypt(
            secret.encode(), salt=salt, n=self.n, r=self.r, p=self.p, maxmem=_MOST_MEMORY, dklen=32
        )


#: What new hashes cost: 16 MiB, some 40 ms.
COST: Final = Cost(2**14, 8, 1)


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who may do something.

    Attributes:
        name: The name that stands in events and audits.
        role: What they may do.
        token_id: Finds the operator of a token; another token, another id.
        salt: Goes into the hash, so that equal secrets have other ones.
        hash: The hash of the token's secret.
        cost: What the hash cost.
        created_ms: When the operator was added, UTC ms.
        until_ms: When the token ends, UTC ms; ``None``: it does not.
    """

    name: str
    role: Role
    token_id: str
    salt: bytes
    hash: bytes
    cost: Cost
    created_ms: int
    until_ms: int | None = None

    def has_ended(self, now_ms: int) -> bool:
        """Say whether the token is of no use any more."""
        return self.until_ms is not None and now_ms >= self.until_ms


class Roster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operators.

    Attributes:
        operators: Them, by name.
        version: Of the file's form.

    Example:
        >>> roster, token = Roster().add("ann", Role.decide, now_ms=0, cost=Cost(2, 1, 1))
        >>> roster.find(token, 1).name
        'ann'
        >>> roster.find(token[:-1] + ("A" if token[-1] != "A" else "B"), 1) is None
        True
    """

    operators: tuple[Operator, ...] = ()
    version: int = 1

    def get(self, name: str) -> Operator:
        """Return the operator of a name.

        Raises:
            RosterError: There is none.
        """
        for one in self.operators:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.operators) or "nobody"
        raise RosterError(f"there is no operator {name[:64]!r}; there are: {known}")

    def add(
        self, name: str, role: Role, now_ms: int, until_ms: int | None = None, cost: Cost = COST
    ) -> tuple[Roster, str]:
        """Return the roster with a new operator, and the operator's token, which is nowhere else.

        Args:
            name: The name: letters, digits and ``. _ @ -``, at most 64.
            role: What they may do.
            now_ms: Now, UTC ms.
            until_ms: When the token ends, UTC ms.
            cost: What the hash shall cost.

        Raises:
            RosterError: The name is none, or is taken, also by one that differs in case only.
        """
        if not _NAME.fullmatch(name):
            raise RosterError(
                f"{name[:64]!r} is no name of an operator: letters, digits and . _ @ -, at most 64"
            )
        if any(one.name.casefold() == name.casefold() for one in self.operators):
            raise RosterError(f"there is an operator {name} already: renew gives another token")
        made, token = _made(name, role, now_ms, until_ms, cost)
        return self._with(made), token

    def renew(
        self, name: str, now_ms: int, until_ms: int | None = None, cost: Cost = COST
    ) -> tuple[Roster, str]:
        """Return the roster with another token for an operator, and that token; the one before ends.

        Raises:
            RosterError: There is no such operator.
        """
        kept = self.get(name)
        made, token = _made(name, kept.role, kept.created_ms, until_ms, cost)
        return self._with(made), token

    def with_role(self, name: str, role: Role) -> Roster:
        """Return the roster with another role for an operator.

        Raises:
            RosterError: There is no such operator.
        """
        return self._with(msgspec.structs.replace(self.get(name), role=role))

    def without(self, name: str) -> Roster:
        """Return the roster less an operator; one without anybody lets nobody do anything.

        Raises:
            RosterError: There is no such operator.
        """
        gone = self.get(name)
        return Roster(tuple(one for one in self.operators if one is not gone))

    def find(self, token: str, now_ms: int) -> Operator | None:
        """Return whose token a text is; ``None``: nobody's, or it has ended.

        It takes the time of one hash, whoever it is.

        Args:
            token: The text.
            now_ms: Now, UTC ms.
        """
        parts = _TOKEN.fullmatch(token)
        token_id, secret = parts.groups() if parts else ("", token[:64])
        found = next((one for one in self.operators if one.token_id == token_id), None)
        kept = found or _nobody()
        same = hmac.compare_digest(kept.cost.hash(secret, kept.salt), kept.hash)
        return found if same and found is not None and not found.has_ended(now_ms) else None

    def still(self, operator: Operator, now_ms: int) -> Operator | None:
        """Return what an operator is now whose token was seen before; ``None``: that token has ended.

        Args:
            operator: The operator as found then.
            now_ms: Now, UTC ms.
        """
        for one in self.operators:
            if one.token_id == operator.token_id and one.name == operator.name:
                return None if one.has_ended(now_ms) else one
        return None

    def _with(self, operator: Operator) -> Roster:
        others = [one for one in self.operators if one.name != operator.name]
        return Roster(tuple(sorted([*others, operator], key=lambda one: one.name)))


class RosterFile:
    """The file of a roster.

    Args:
        path: The file.
        required: Whether its absence is an error: somebody has said that it is there.
    """

    def __init__(self, path: Path, *, required: bool = False) -> None:
        self.path = path
        self.required = required
        self._kept: tuple[object, Roster] | None = None

    def read(self) -> Roster | None:
        """Return the roster as it is now; ``None``: there is none, and names are free text.

        Raises:
            RosterError: It cannot be read, is no roster, is not there though it should be, or others than
                its owner may write it.
        """
        try:
            status = self.path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise RosterError(f"the operators in {self.path} cannot be read: it is no file")
            if status.st_mode & (stat.S_IWGRP | stat.S_IRWXO):
                raise RosterError(f"{self.path} is open to others than its owner: chmod 640 {self.path}")
            mark = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if self._kept is None or self._kept[0] != mark:
                self._kept = mark, self._decoded(status.st_size)
            return self._kept[1]
        except FileNotFoundError:
            if self.required or self.path.is_symlink():
                raise RosterError(
                    f"the operators in {self.path} cannot be read: there is no such file; "
                    "`millrace operators add` begins one"
                ) from None
            return None
        except OSError as error:
            raise RosterError(f"the operators in {self.path} cannot be read: {error.strerror}") from None

    def _decoded(self, size: int) -> Roster:
        if size > _LARGEST:
            raise RosterError(f"{self.path} is too large for a roster of operators")
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=Roster)
        except NOT_JSON as error:
            raise RosterError(f"{self.path} is no roster of operators: {error}") from None
        if wrong := _wrong(found):
            raise RosterError(f"{self.path} is no roster of operators: {wrong}")
        return found

    def change(self, make: Callable[[Roster], tuple[Roster, T]]) -> T:
        """Replace the roster by what is made of it, whole or not at all, one who changes it at a time.

        Args:
            make: The roster as it is, empty where there is none → the new one, and what is returned.

        Raises:
            RosterError: It cannot be read or written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_name(f".{self.path.name}.lock")):
                there = self.path.exists() or self.path.is_symlink()
                made, result = make((self.read() if there else None) or Roster())
                self._write(made)
            return result
        except OSError as error:
            raise RosterError(f"{self.path} cannot be written: {error.strerror}") from None

    def _write(self, roster: Roster) -> None:
        place = self.path.resolve()
        mode = stat.S_IMODE(place.stat().st_mode) & 0o640 if place.exists() else 0o600
        part = place.with_name(f".{place.name[:100]}.{os.getpid()}.part")
        part.unlink(missing_ok=True)
        try:
            with open_private(part) as file:
                file.write(msgspec.json.format(msgspec.json.encode(roster), indent=2).decode() + "\n")
                file.flush()
                os.fsync(file.fileno())
            part.chmod(mode)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)


def roster_file(settings: AppSettings | None = None) -> RosterFile:
    """Return the file of the roster that is in force.

    Args:
        settings: Settings that say where it is; ``None``: what the settings file and the environment say for
            all apps. Unless they name one it is ``operators.json`` in ``.millrace`` or ``MILLRACE_HOME``.

    >>> from millrace.runtime.settings import AppSettings
    >>> told = roster_file(AppSettings(operators={"file": "/etc/millrace/operators.json"}))
    >>> str(told.path), told.required
    ('/etc/millrace/operators.json', True)
    """
    if settings is None:
        from millrace.runtime.settings import AppSettings, load_settings

        settings = load_settings(AppSettings, app="operators")
    named = settings.operators.file
    if named is None:
        return RosterFile(home() / FILE_NAME)
    return RosterFile(Path(named).expanduser().absolute(), required=True)


def _made(name: str, role: Role, created_ms: int, until_ms: int | None, cost: Cost) -> tuple[Operator, str]:
    token_id, secret, salt = secrets.token_hex(8), secrets.token_urlsafe(32), secrets.token_bytes(16)
    made = Operator(name, role, token_id, salt, cost.hash(secret, salt), cost, created_ms, until_ms)
    return made, f"{_LEADS}-{token_id}-{secret}"


@functools.cache
def _nobody() -> Operator:
    """Return somebody whose token nobody has, so that an unknown one costs what a known one does."""
    return _made("", Role.look, 0, None, COST)[0]


def _wrong(roster: Roster) -> str:
    """Return what of a roster is not as this module writes it; empty if all of it is."""
    if roster.version != 1:
        return f"it is of version {roster.version}, this is 1"
    names: set[str] = set()
    ids: set[str] = set()
    for one in roster.operators:
        if not _NAME.fullmatch(one.name):
            return f"{one.name[:64]!r} is no name"
        if one.name.casefold() in names or one.token_id in ids:
            return f"{one.name} is there twice"
        names.add(one.name.casefold())
        ids.add(one.token_id)
        n, r, p = one.cost
        if not (n > 1 and not n & (n - 1) and r > 0 and 0 < p <= 16 and 128 * n * r * 2 <= _MOST_MEMORY):
            return f"{one.name}: scrypt cannot be asked for n={n}, r={r}, p={p}"
        if len(one.hash) != 32 or len(one.salt) < 16 or not re.fullmatch("[0-9a-f]{16}", one.token_id):
            return f"{one.name}: the token's hash is not whole"
    return ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
