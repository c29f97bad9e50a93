"""Files and folders that are this user's alone, and whether others could have changed one.

What a command makes (tables, checkpoints, logs, exports) holds other people's data, so every command
begins with :func:`keep_private`: whatever it or a process that it starts creates, JVMs among them, can be
read by its owner only. Who wants a group to read along says so with ``MILLRACE_UMASK``.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from millrace.errors import UserError

#: Environment variable with the permissions that are taken away from what is made, as umask(1) writes them.
UMASK_VARIABLE: Final = "MILLRACE_UMASK"
_PRIVATE: Final = 0o077
_GIVEN_VARIABLE: Final = "MILLRACE_GIVEN_UMASK"


def keep_private(environ: Mapping[str, str] = os.environ) -> int:
    """Let this process and its children make files that only their owner can use; return the umask.

    Args:
        environ: The environment: ``MILLRACE_UMASK`` says what is taken away instead of everything from
            everybody else; never less than the umask of the shell where that is stricter.

    Raises:
        UserError: The variable is no umask, or one that takes rights from the owner.

    Example:
        >>> before = os.umask(0o022)
        >>> oct(keep_private({})), oct(keep_private({"MILLRACE_UMASK": "027"}))
        ('0o77', '0o77')
        >>> _ = os.umask(before)
    """
    told = environ.get(UMASK_VARIABLE)
    try:
        wanted = _PRIVATE if not told else int(told, 8)
    except ValueError:
        wanted = -1
    if not 0 <= wanted <= _PRIVATE:
        raise UserError(f"{UMASK_VARIABLE}={told} is no umask: write 077, or 027 to let the group read")
    given = os.umask(wanted)
    # A process that one of ours has started finds ours: what its user's was, it is told.
    os.environ.setdefault(_GIVEN_VARIABLE, f"{given:03o}")
    os.umask(given | wanted)
    return given | wanted


def current_umask() -> int:
    """Return the umask of this process, without a moment in which it is another one where that can be.

    >>> before = os.umask(0o027)
    >>> oct(current_umask())
    '0o27'
    >>> _ = os.umask(before)
    """
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    found = os.umask(_PRIVATE)  # where there is no /proc
    os.umask(found)
    return found


def share(path: Path) -> None:
    """Give a file or folder that holds nobody's data the permissions that this user's files have otherwise.

    Args:
        path: A source file, a jar, a folder of such.
    """
    told = os.environ.get(_GIVEN_VARIABLE)
    if told is None:
        return  # the umask is the user's own: what was made with it is as it should be
    given = int(told, 8)
    if path.is_dir():
        path.chmod(0o777 & ~given)
    else:
        path.chmod(0o666 & ~given)


def make_shared(folder: Path) -> None:
    """Make a folder and those above it that are not there, and :func:`share` what was made.

    Args:
        folder: A folder for what is nobody's data.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        share(made)


def open_private(path: Path) -> IO[str]:
    """Create a text file that only its owner can read, whatever the umask, and return it to be written.

    Args:
        path: The file.

    Raises:
        FileExistsError: Something has this name already; a link counts, wherever it leads.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "w", encoding="utf-8")


def is_ours(path: Path) -> bool:
    """Say whether nobody but this user and root can have written a file, or put another in its place.

    Every folder above it is looked at too, links included: whoever may write in one of them may replace
    what is below. A folder in which only owners may rename (``/tmp``) is no danger to what is ours in it.

    Example:
        >>> is_ours(Path("/etc/passwd")), is_ours(Path("/no/such/file"))
        (True, False)
    """
    try:
        real, named = path.resolve(strict=True), path.absolute()
        if not _only_ours(real.stat(), inside=False):
            return False
        above = {*real.parents, *named.parents}
        return all(_only_ours(folder.stat(), inside=True) for folder in above) and all(
            _is_owner(one.lstat().st_uid) for one in (named, *named.parents)
        )
    except OSError:
        return False


def _only_ours(status: os.stat_result, *, inside: bool) -> bool:
    if not _is_owner(status.st_uid):
        return False
    if inside and status.st_mode & stat.S_ISVTX:
        return True
    if status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or _is_own_group(status.st_gid)


def _is_owner(uid: int) -> bool:
    return uid in (os.geteuid(), 0)


def _is_own_group(gid: int) -> bool:
    """Say whether a group has one member, us: the user's own, as many systems make it."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == 0 or (
        user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    )
