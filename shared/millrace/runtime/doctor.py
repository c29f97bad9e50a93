"""Whether this machine can run the apps: each check says ok, or what is wrong and what to do.

Nothing is remembered between calls: what was right a minute ago may be wrong now.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from millrace.errors import MillraceError
from millrace.local.java_check import TESTED_VERSIONS, check_java
from millrace.local.python_build import is_optimised
from millrace.runtime.redaction import redact_text

__all__ = ["Finding", "Machine", "quick_check", "refused", "run_checks"]

Status: TypeAlias = Literal["ok", "warning", "broken"]

#: Below this the demo (broker, Spark, generator together) swaps or is killed.
NEEDED_MEMORY_GB: Final = 4.0
#: Jars, a demo's tables and its checkpoints, with room to spare.
NEEDED_DISK_GB: Final = 3.0
#: Packages whose versions have to fit each other and the jars.
_PINNED: Final = ("pyspark", "delta-spark", "pyarrow", "pandas", "confluent-kafka")
_GB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What was checked.
        status: ``ok``; ``warning``: works, but something may go wrong; ``broken``: will not work.
        found: What was found.
        advice: What to do; empty if all is well.
        figures: What was measured, by name.
    """

    name: str
    status: Status
    found: str
    advice: str = ""
    figures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is looked at, so that a test can offer another machine.

    Attributes:
        env: Environment variables.
        bootstrap: Kafka brokers that are configured, if any.
        kafka_options: Options of the Kafka clients.
        storage: Where tables will be written, if that is a local folder.
        key_file: The file of the keys that state is encrypted with, if one is configured.
        config: The settings file, if there may be one.
        python: Version of Python.
        optimised: Whether it was built with its optimisations.
        available_memory: Bytes free for new processes, if known.
    """

    env: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    bootstrap: str | None = None
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage: Path | None = None
    key_file: str | None = None
    config: Path | None = None
    python: tuple[int, int, int] = sys.version_info[:3]
    optimised: bool = field(default_factory=is_optimised)
    available_memory: int | None = None


def quick_check(env: Mapping[str, str] | None = None) -> None:
    """Refuse to go on where Spark could not start: no usable Java, or jars missing. Takes about 0.2 s.

    Args:
        env: Environment variables; default those of this process.

    Raises:
        UserError: In one line what is wrong and what to do.
    """
    from millrace.local.jars import jar_paths

    check_java(os.environ if env is None else env)
    jar_paths("spark")


def run_checks(machine: Machine | None = None, *, quick: bool = False) -> list[Finding]:
    """Return the findings of all checks, or of those that decide whether Spark starts.

    Args:
        machine: What to look at; default this machine, without a broker.
        quick: Only Python, Java and the jars.
    """
    machine = machine or Machine()
    checks: list[tuple[str, Callable[[Machine], Finding]]] = [
        ("Python", _python),
        ("Java", _java),
        ("jars for Spark", lambda _: _jars("spark")),
    ]
    if not quick:
        checks += [
            ("jars for the broker", lambda _: _jars("broker")),
            ("packages", _packages),
            ("memory", _memory),
            ("disk", _disk),
            ("temporary folder", _temporary_folder),
            ("ports", _ports),
            ("PYSPARK_PYTHON", _pyspark_python),
            ("SPARK_HOME", _spark_home),
            ("broker", _broker),
            ("state keys", _state_keys),
            ("permissions", _permissions),
        ]
    return [_guarded(name, check, machine) for name, check in checks]


def _guarded(name: str, check: Callable[[Machine], Finding], machine: Machine) -> Finding:
    """Return the finding of ``check``; one check that fails must not hide the others."""
    try:
        return check(machine)
    except MillraceError as error:
        return refused(name, error)
    except Exception as error:
        found = redact_text(f"the check itself failed: {type(error).__name__}: {error}")
        return Finding(name, "broken", found, "please report it")


def refused(name: str, error: MillraceError) -> Finding:
    """Return the finding of a check that ended with an error."""
    # Messages say what is wrong, and behind the last semicolon what to do.
    found, _, advice = redact_text(str(error)).rpartition("; ")
    return Finding(name, "broken", found or advice, advice if found else "")


def _python(machine: Machine) -> Finding:
    version = ".".join(map(str, machine.python))
    if machine.python < (3, 11):
        return Finding("Python", "broken", f"{version}, too old", "install Python 3.11 or newer")
    if not machine.optimised:
        return Finding(
            "Python",
            "warning",
            f"{version}, built without optimisations: up to half as slow again ({sys.executable})",
            "for speed take a distribution's or uv's Python, or build it anew, with pyenv by "
            f"PYTHON_CONFIGURE_OPTS='--enable-optimizations --with-lto' pyenv install --force {version}",
        )
    return Finding("Python", "ok", f"{version} ({sys.executable})")


def _java(machine: Machine) -> Finding:
    java = check_java(machine.env)
    if java.major not in TESTED_VERSIONS:
        advice = "set JAVA_HOME to a Java 17 or 21 if anything behaves strangely"
        return Finding("Java", "warning", f"{java.version}, which is untested ({java.path})", advice)
    return Finding("Java", "ok", f"{java.version} ({java.path})")


def _jars(group: Literal["spark", "broker"]) -> Finding:
    from millrace.local.jars import jar_paths

    name = {"spark": "jars for Spark", "broker": "jars for the broker"}[group]
    paths = jar_paths(group)
    return Finding(
        name, "ok", f"{len(paths)} in {paths[0].parent}" if len(paths) == 1 else f"{len(paths)} cached"
    )


def _packages(machine: Machine) -> Finding:
    from packaging.requirements import Requirement

    wrong: list[str] = []
    right: list[str] = []
    for text in importlib.metadata.requires("millrace") or ():
        wanted = Requirement(text)
        if wanted.name not in _PINNED:
            continue
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{wanted.name} is not installed (needs {wanted.specifier})")
            continue
        fits = wanted.specifier.contains(version, prereleases=True)
        (right if fits else wrong).append(
            f"{wanted.name} {version}" + ("" if fits else f" (needs {wanted.specifier})")
        )
    if wrong:
        return Finding("packages", "broken", ", ".join(wrong), "run: make setup")
    return Finding("packages", "ok", ", ".join(right))


def _memory(machine: Machine) -> Finding:
    available = machine.available_memory
    if available is None:
        import psutil

        available = psutil.virtual_memory().available
    found = f"{available / _GB:.1f} GB available"
    if available < NEEDED_MEMORY_GB * _GB:
        advice = f"the demo needs up to {NEEDED_MEMORY_GB:g} GB: close programs, or lower spark.driver_memory"
        return Finding("memory", "warning", found, advice)
    return Finding("memory", "ok", found)


def _disk(machine: Machine) -> Finding:
    from millrace.local.jar_cache import cache_root

    free = {}
    for folder in filter(None, (cache_root(machine.env), machine.storage)):
        there = next(p for p in (folder, *folder.parents) if p.exists())
        if not os.access(there, os.W_OK):
            return Finding(
                "disk", "broken", f"{there} is not writable", "set MILLRACE_CACHE or storage.root elsewhere"
            )
        free[there] = shutil.disk_usage(there).free
    folder, least = min(free.items(), key=lambda item: item[1])
    found = f"{least / _GB:.1f} GB free at {folder}"
    if least < NEEDED_DISK_GB * _GB:
        return Finding(
            "disk", "broken", found, f"free {NEEDED_DISK_GB:g} GB, or set MILLRACE_CACHE or storage.root"
        )
    return Finding("disk", "ok", found)


def _temporary_folder(machine: Machine) -> Finding:
    name = "temporary folder"
    # The library's own choice silently passes over a TMPDIR that cannot be used; Java's programs do not.
    folder = Path(machine.env.get("TMPDIR") or tempfile.gettempdir())
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            name, "broken", f"{folder}: {error.strerror}", "set TMPDIR to a folder that can be written"
        )
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        advice = "RocksDB loads its library from there: set TMPDIR to a folder that allows it"
        return Finding(name, "warning", f"{folder} forbids running programs (noexec)", advice)
    return Finding(name, "ok", str(folder))


def _ports(machine: Machine) -> Finding:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            with socket.create_connection(server.getsockname(), timeout=5):
                pass
    except OSError as error:
        advice = "allow connections to 127.0.0.1 (firewall, sandbox)"
        return Finding("ports", "broken", f"cannot listen on 127.0.0.1: {error.strerror or error}", advice)
    return Finding("ports", "ok", "127.0.0.1 can be listened on")


def _pyspark_python(machine: Machine) -> Finding:
    name = "PYSPARK_PYTHON"
    for variable in ("PYSPARK_DRIVER_PYTHON", name):
        program = machine.env.get(variable)
        if not program or program == sys.executable:
            continue
        version = _python_version(program, machine.env)
        if version is None:
            return Finding(name, "broken", f"{variable}={program} is no Python", f"unset {variable}")
        if version != (here := f"{sys.version_info[0]}.{sys.version_info[1]}"):
            found = f"{variable}={program} is Python {version}, this is {here}"
            return Finding(name, "broken", found, f"unset {variable}: Spark refuses different versions")
        found = f"{variable}={program} is another installation than {sys.executable}"
        return Finding(name, "warning", found, f"unset {variable}, unless it has the same packages")
    return Finding(name, "ok", "workers use this Python")


def _python_version(program: str, env: Mapping[str, str]) -> str | None:
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        return None
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([found, "-Sc", code], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _spark_home(machine: Machine) -> Finding:
    home = machine.env.get("SPARK_HOME")
    spec = importlib.util.find_spec("pyspark")
    ours = Path(next(iter(spec.submodule_search_locations or [""]))) if spec else None
    if not home:
        return Finding("SPARK_HOME", "ok", f"not set: Spark of the pip package ({ours})")
    if ours and Path(home).resolve() == ours.resolve():
        return Finding("SPARK_HOME", "ok", home)
    advice = "unset SPARK_HOME"
    cores = sorted((Path(home) / "jars").glob("spark-core_*.jar"))
    if not cores:
        return Finding("SPARK_HOME", "broken", f"{home} holds no Spark", advice)
    version = re.sub(r"^spark-core_[\d.]+-|\.jar$", "", cores[0].name)
    wanted = importlib.metadata.version("pyspark")
    if version != wanted:
        return Finding(
            "SPARK_HOME", "broken", f"{home} is Spark {version}, the Python side is {wanted}", advice
        )
    return Finding(
        "SPARK_HOME", "warning", f"{home} is another Spark {version} than the pip package's", advice
    )


def _permissions(machine: Machine) -> Finding:
    """Look for what other users of this machine can read of the data, and change of the programs."""
    from millrace.local.jar_cache import cache_root
    from millrace.local.private import is_ours

    name = "permissions"
    cache = cache_root(machine.env)
    if cache.exists() and not is_ours(cache):
        return Finding(
            name,
            "warning",
            f"others can write to the jar cache {cache}, or above it: all jars are read again at every start",
            "let only one user write there, or set MILLRACE_CACHE to a folder of yours",
        )
    storage, config = machine.storage, machine.config
    if storage is not None and _is_open(storage):
        return Finding(
            name, "warning", f"every user of this machine can read {storage}", f"run: chmod -R o= {storage}"
        )
    if config is not None and _is_open(config):
        text = config.read_text("utf-8", errors="replace")
        if redact_text(text) != text:
            found = f"{config} holds secrets, and every user of this machine can read it"
            return Finding(name, "warning", found, f"run: chmod o= {config}")
    return Finding(name, "ok", "tables, settings and jars are out of reach of other users")


def _is_open(path: Path) -> bool:
    """Say whether every user can get at a file or folder: it and the way to it are open."""
    if not path.exists():
        return False
    above = [*path.absolute().parents]
    return bool(path.stat().st_mode & 0o006) and all(folder.stat().st_mode & 0o001 for folder in above)


def _broker(machine: Machine) -> Finding:
    if not machine.bootstrap:
        return Finding("broker", "ok", "none configured: an embedded one is started when needed")
    from millrace.kafka.admin import ping

    if not ping(machine.bootstrap, options=machine.kafka_options):
        advice = "start it, correct kafka.bootstrap, or leave that out for an embedded broker"
        return Finding("broker", "broken", f"no broker answers at {machine.bootstrap}", advice)
    return Finding("broker", "ok", f"{machine.bootstrap} answers")


def _state_keys(machine: Machine) -> Finding:
    from millrace.state.keyring import CIPHER, configured_keys

    name = "state keys"
    keys = configured_keys(machine.key_file, machine.env)
    if keys is None:
        return Finding(name, "ok", "none configured: state is kept in clear, with checksums")
    found = f"{len(keys.ids)}, {keys.ids[0]} encrypts ({CIPHER})"
    if keys.file is not None and Path(keys.file).stat().st_mode & 0o007:
        return Finding(
            name, "warning", f"{found}; every user can use {keys.file}", f"run: chmod o= {keys.file}"
        )
    return Finding(name, "ok", found)
