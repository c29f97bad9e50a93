"""Discovery of the Java that runs Spark and the embedded broker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from millrace.errors import UserError

_INSTALL = "install a Java 17 or 21 runtime, or set JAVA_HOME to one"


class JavaError(UserError):
    """There is no Java, or none that can be used."""


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the ``java`` that Spark's own scripts would take: that of ``JAVA_HOME``, else of ``PATH``.

    Args:
        environ: The environment to read.

    Raises:
        JavaError: There is none.
    """
    if home := environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if os.access(java, os.X_OK):
            return java
        raise JavaError(f"JAVA_HOME is {home}, but there is no bin/java in it; {_INSTALL}")
    if found := shutil.which("java", path=environ.get("PATH")):
        return Path(found)
    raise JavaError(f"no Java found (JAVA_HOME is not set, and no java is on PATH); {_INSTALL}")
