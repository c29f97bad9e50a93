"""A commit of this project beside today's tree: a git worktree and an environment of its own, kept for later.

They stand below ``references`` in the user's cache, a folder per commit, so that the next comparison with the
same commit has them at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.errors import UserError
from millrace.local.jar_cache import cache_root

#: What would point a side at another side's packages.
_MISLEADING: Final = {
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX"),
}
_SHORT: Final = 10
#: Names and files may be of any encoding.
_ANY_BYTES: Final = "surrogateescape"


def references(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of all references: ``MILLRACE_CACHE``, or the user's own cache.

    Example:
        >>> references({"MILLRACE_CACHE": "/var/cache/millrace"})
        PosixPath('/var/cache/millrace/references')
    """
    return cache_root(environ).parent / "references"


@dataclass(frozen=True)
class State:
    """What a source tree holds.

    Attributes:
        commit: The commit that it stands on, in full.
        dirty: Whether files differ from it, or are new.
        changes: A hash of how they differ; of what is new the content counts too.
    """

    commit: str
    dirty: bool
    changes: str


def repository(folder: Path) -> Path:
    """Return the source tree that a folder is in.

    Raises:
        UserError: It is in none that git knows.
    """
    found = _git(folder, "rev-parse", "--show-toplevel")
    if found is None:
        raise UserError(f"{folder} is in no git repository: a comparison needs one, with the commit in it")
    return Path(found.strip())


def commit_of(repo: Path, ref: str) -> str:
    """Return the full name of a commit.

    Args:
        repo: The repository.
        ref: A commit, a branch or a tag.

    Raises:
        UserError: There is no such commit.
    """
    # Behind --end-of-options a name may begin with a dash.
    found = _git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if found is None:
        raise UserError(f"--ref {ref}: no such commit in {repo}")
    return found.strip()


def state_of(tree: Path) -> State:
    """Return what a source tree holds now."""
    commit = commit_of(tree, "HEAD")
    changed = _git(tree, "diff", "HEAD", "--binary", "--no-ext-diff") or ""
    listed = _git(tree, "ls-files", "--others", "--exclude-standard", "-z") or ""
    new = sorted(filter(None, listed.split("\0")))
    digest = hashlib.sha256(changed.encode(errors=_ANY_BYTES))
    for name in new:
        path = tree / name
        digest.update(f"\n{name}\n".encode(errors=_ANY_BYTES))
        digest.update(path.read_bytes() if path.is_file() else b"")
    return State(commit, bool(changed or new), digest.hexdigest()[:16])


def reference(
    repo: Path,
    commit: str,
    cache: Path,
    *,
    fresh: bool = False,
    set_up: Callable[[Path], None],
    say: Callable[[str], None],
) -> Path:
    """Return the source tree of a commit, ready to run; made when it is not there yet.

    Args:
        repo: The repository that has the commit.
        commit: Its full name.
        cache: Folder of all references.
        fresh: Take away what is there and make it anew.
        set_up: Makes the environment of a source tree; called every time, what is done is done.
        say: Is told what goes on.

    Raises:
        UserError: git cannot make the worktree, or the environment cannot be made.
    """
    folder = cache / commit
    tree, short = folder / "tree", commit[:_SHORT]
    with _alone(cache / f"{commit}.lock", lambda: say(f"another comparison makes {short}: waiting for it")):
        if folder.exists() and (fresh or not _is_whole(tree, commit)):
            say(f"the reference {short} is {'removed' if fresh else 'incomplete or changed'}: made anew")
            remove(repo, tree)
        if not tree.exists():
            say(f"a worktree of {short} in {tree}")
            folder.mkdir(parents=True, exist_ok=True)
            _add(repo, tree, commit)
        set_up(tree)
    return tree


def remove(repo: Path, tree: Path) -> None:
    """Take a reference away, and what git knows of it."""
    shutil.rmtree(tree.parent, ignore_errors=True)
    _git(repo, "worktree", "prune")


def _add(repo: Path, tree: Path, commit: str) -> None:
    done = _run_git(repo, "worktree", "add", "-f", "-f", "--quiet", "--detach", str(tree), commit)
    if done.returncode != 0 or not _is_whole(tree, commit):
        remove(repo, tree)
        lines = done.stderr.strip().splitlines() or ["git said nothing"]
        raise UserError(f"git cannot make a worktree of {commit[:_SHORT]}: {lines[-1]}")


def _is_whole(tree: Path, commit: str) -> bool:
    """Say whether a tree has the files of a commit, all of them and as they are there."""
    if not (tree / ".git").exists() or (_git(tree, "rev-parse", "HEAD") or "").strip() != commit:
        return False
    return (_git(tree, "status", "--porcelain") or "").strip() == ""


def set_up(tree: Path, say: Callable[[str], None]) -> None:
    """Make the environment of a source tree by its own ``scripts/setup.py``, with the shared caches.

    Args:
        tree: The source tree.
        say: Is told when that begins.

    Raises:
        UserError: It has none, or that fails.
    """
    script = tree / "scripts" / "setup.py"
    if not script.exists():
        raise UserError(f"{tree} has no scripts/setup.py: its environment cannot be made")
    log = tree.parent / "setup.log"
    say(f"the environment of {tree}; what is done stands in {log}")
    # Not this environment's Python, which the other one would then stand on.
    python = getattr(sys, "_base_executable", None) or sys.executable
    child = subprocess.Popen(
        [python, str(script)],
        cwd=tree,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is passed on once, by us
    )
    last = "it said nothing"
    try:
        assert child.stdout is not None  # noqa: S101  (it is a pipe)
        with log.open("w", encoding="utf-8") as file:
            for line in child.stdout:
                file.write(line)
                last = line.strip() or last
                if line.startswith(("[", "Set up")) or "still at it" in line:
                    say(f"  {last}")
        code = child.wait()
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)  # on which it ends what it has started
            child.wait()
    if code != 0:
        raise UserError(f"scripts/setup.py of {tree} failed with exit code {code}: {last} (all of it: {log})")


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for a side's commands: ours, less what belongs to one side.

    Example:
        >>> environment({"PATH": "/bin", "PYTHONPATH": "/elsewhere", "GIT_DIR": "/elsewhere"})
        {'PATH': '/bin'}
    """
    return {name: value for name, value in environ.items() if name not in _MISLEADING}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git answers; ``None`` where it fails."""
    done = _run_git(folder, *arguments)
    return done.stdout if done.returncode == 0 else None


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Hooks are for people; what they do to a worktree is not part of the commit.
    command = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, env=environment(),
                              check=False, errors=_ANY_BYTES)  # fmt: skip
    except FileNotFoundError as error:
        raise UserError("a comparison needs git: install it") from error


@contextmanager
def _alone(lock: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time make a reference."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    except OSError as error:
        raise UserError(
            f"{lock.parent} cannot be written ({error.strerror}): set MILLRACE_CACHE to a folder of yours"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
