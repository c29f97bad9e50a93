"""Whether Spark can run on the Java that it would start: version and modules, asked anew at every call."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.local.java import JavaError, find_java

#: What Spark, Kafka and Delta are tested on.
TESTED_VERSIONS: Final = (17, 21)
#: Nothing older can load their classes.
OLDEST_VERSION: Final = 17
#: Spark starts Java with ``--add-modules`` of this; a trimmed runtime without it does not start.
VECTOR_MODULE: Final = "jdk.incubator.vector"
#: A Java that does not answer within this time hangs.
_PATIENCE_S: Final = 30.0
_INSTALL: Final = "install a full Java 17 or 21 runtime, or set JAVA_HOME to one"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can run on.

    Attributes:
        path: Its ``java`` program.
        major: Its version, e.g. 17.
        version: Its full version, e.g. ``"17.0.15"``.
    """

    path: Path
    major: int
    version: str


def check_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java that Spark would start, if Spark can run on it; takes about 0.1 s.

    Args:
        environ: The environment to read.

    Raises:
        JavaError: There is none, it does not work, it is too old, or a module is missing.
    """
    path = find_java(environ)
    modules = dict(line.partition("@")[::2] for line in _run(path, "--list-modules", environ).splitlines())
    version = modules.get("java.base")
    if version is None:
        # Java 8 has no modules; it says its version on the error stream.
        old = re.search(r'version "([^"]+)"', _run(path, "-version", environ))
        version = old[1] if old else ""
    number = re.match(r"(?:1\.)?(\d+)", version)
    if number is None:
        raise JavaError(f"{path} does not work; {_INSTALL}")
    java = Java(path, int(number[1]), version)
    if java.major < OLDEST_VERSION:
        raise JavaError(f"{path} is Java {version}, too old; {_INSTALL}")
    if VECTOR_MODULE not in modules:
        raise JavaError(f"{path} is a trimmed runtime without the module {VECTOR_MODULE}; {_INSTALL}")
    return java


def _run(java: Path, argument: str, environ: Mapping[str, str]) -> str:
    """Return everything that ``java argument`` prints, or nothing if it cannot be run."""
    # JAVA_TOOL_OPTIONS may hold anything, agents included; this call needs none of it.
    clean = {k: v for k, v in environ.items() if k not in ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")}
    try:
        done = subprocess.run(
            [java, argument],
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
