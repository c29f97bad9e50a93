"""Packages for ``spark-submit``: code and environment for a cluster that has nothing of this project.

The environment is an archive that Spark unpacks beside each executor: the installed distributions that the
chosen extras ask for, as they are here, and a ``bin/python`` that finds them wherever it is unpacked. The
nodes must have a Python of the same version at the place of this one's (``/usr/bin/python3.13``), or tell
another by ``MILLRACE_PYTHON``; the system and the processor must be alike, as for any compiled library.
Spark's own jars are left out: the cluster has them.
"""

from __future__ import annotations

import io
import platform
import re
import shlex
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Final, NamedTuple

from millrace.errors import UserError
from millrace.runtime.installed import APPS_GROUP
from millrace.runtime.shipping import project_archive

#: Its name on the cluster: what stands behind the ``#`` of ``--archives``.
ENVIRONMENT: Final = "environment"
_PROJECT: Final = "millrace"
#: Parts of distributions that no executor needs, by the path below site-packages.
_LEFT_OUT: Final = re.compile(
    r"(^|/)__pycache__/|\.pyc$|^pyspark/(jars|examples|data|sbin|bin)/|^(pandas|pyarrow|scipy)/(.*/)?tests?/|^\.\./|^/|\.pth$"
)
_LAUNCHER: Final = """#!/bin/sh
# Python with the libraries of this archive, wherever it was unpacked.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
python=${{MILLRACE_PYTHON:-{python}}}
if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))' 2>/dev/null; then
  echo "millrace: no Python {major}.{minor} at $python; name one in MILLRACE_PYTHON" >&2
  exit 2
fi
PYTHONPATH="$here/site-packages${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec "$python" "$@"
"""


class Packed(NamedTuple):
    """What was made.

    Attributes:
        code: The project's code, for ``--py-files``.
        environment: The libraries, for ``--archives``.
        distributions: Names and versions of what is in it.
        python: The Python that nodes must have.
    """

    code: Path
    environment: Path
    distributions: tuple[str, ...]
    python: str

    @property
    def command(self) -> str:
        """How a job is submitted with it, from its folder."""
        words = " ".join(map(_quoted, self.arguments))
        return f"cd {_quoted(str(self.code.parent))} && {words} JOB.py"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command up to the job, as it is called in its folder."""
        return (
            "spark-submit",
            *("--master", "spark://HOST:7077"),
            *("--py-files", self.code.name),
            *("--archives", f"{self.environment.name}#{ENVIRONMENT}"),
            *("--conf", f"spark.pyspark.python=./{ENVIRONMENT}/bin/python"),
            *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
        )


def package(
    folder: Path, extras: Sequence[str] = ("apps",), told: Callable[[str], None] = lambda text: None
) -> Packed:
    """Make what ``spark-submit`` takes along.

    Args:
        folder: Where it goes; made if need be.
        extras: Extras of the project whose libraries go along.
        told: Told in a line what is done.

    Raises:
        UserError: An extra is none, a library is not installed here, or the folder cannot be written.

    Example:
        >>> package(Path("dist")).command  # doctest: +SKIP
        'cd dist && spark-submit --master spark://HOST:7077 --py-files millrace-….zip …'
    """
    found = closure(_PROJECT, extras)
    try:
        code = project_archive(folder)
        told(f"code: {code}")
        target = (
            folder / f"{ENVIRONMENT}-{sys.version_info[0]}.{sys.version_info[1]}-{platform.machine()}.tar.gz"
        )
        told(f"{len(found)} libraries …")
        python = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        _write(target, found, python)
        _for_driver(folder / ENVIRONMENT / "bin" / "python")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    names = tuple(f"{one.metadata['Name']} {one.version}" for one in found)
    return Packed(code, target, names, python)


def closure(project: str, extras: Sequence[str]) -> list[Distribution]:
    """Return the installed distributions that a project's extras ask for, without it and apps, by name.

    Args:
        project: Its name.
        extras: Its extras.

    Raises:
        UserError: An extra is none of its, or what is asked for is not installed.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    root = distribution(project)
    known = {canonicalize_name(name) for name in root.metadata.get_all("Provides-Extra") or ()}
    if unknown := [name for name in extras if canonicalize_name(name) not in known]:
        raise UserError(f"there is no extra {unknown[0]}; there are {', '.join(sorted(known))}")
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo: list[tuple[Distribution, tuple[str, ...]]] = [(root, tuple(extras))]
    while todo:
        one, wanted = todo.pop()
        for text in one.requires or ():
            need = Requirement(text)
            if need.marker is not None and not any(
                need.marker.evaluate({"extra": extra}) for extra in ("", *wanted)
            ):
                continue
            name = str(canonicalize_name(need.name))
            new = [extra for extra in ("", *sorted(need.extras)) if (name, extra) not in seen]
            if not new:
                continue
            seen.update((name, extra) for extra in new)
            try:
                there = found.setdefault(name, distribution(name))
            except PackageNotFoundError as error:
                raise UserError(
                    f"{one.metadata['Name']} needs {need.name}, which is not installed here"
                ) from error
            todo.append((there, tuple(extra for extra in new if extra)))
    # What apps are installed by goes along as code, as the project itself does.
    ours = {str(canonicalize_name(e.dist.name)) for e in entry_points(group=APPS_GROUP) if e.dist is not None}
    return [found[name] for name in sorted(set(found) - ours - {str(canonicalize_name(project))})]


def _quoted(word: str) -> str:
    """Return a word as a shell takes it; a ``#`` within one begins no comment.

    >>> _quoted("env.tar.gz#env"), _quoted("my dist")
    ('env.tar.gz#env', "'my dist'")
    """
    plain = word.replace("#", "")
    return word if shlex.quote(plain) == plain else shlex.quote(word)


def _for_driver(path: Path) -> None:
    """Write what stands beside the driver in the place of the archive's Python: this one.

    Spark runs one Python process there, to learn what state there is, by the name that executors know.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)


def _write(target: Path, found: Sequence[Distribution], python: str) -> None:
    part = target.with_name(f".{target.name}.part")
    try:
        with tarfile.open(part, "w:gz", compresslevel=1) as archive:
            launcher = _LAUNCHER.format(
                python=python, major=sys.version_info[0], minor=sys.version_info[1]
            ).encode()
            for name in ("bin/python", "bin/python3"):
                about = tarfile.TarInfo(name)
                about.size, about.mode = len(launcher), 0o755
                archive.addfile(about, io.BytesIO(launcher))
            for one in found:
                for path, name in files_of(one):
                    archive.add(path, f"site-packages/{name}", recursive=False)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def files_of(one: Distribution) -> Iterator[tuple[Path, str]]:
    """Yield the files of a distribution that go along: where they are, and the path below site-packages."""
    for file in one.files or ():
        name = file.as_posix()
        path = Path(str(file.locate()))
        if not _LEFT_OUT.search(name) and path.is_file():
            yield path, name
