"""Launch configuration of Spark's JVM, by files that only this user can read.

PySpark hands every setting over as an argument, and arguments stand in the list of processes for everybody on
the machine, secrets of storage and brokers among them. Here they go into a file in the session's own folder,
which is gone as soon as the JVM has read it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from millrace.errors import UserError
from millrace.local.private import open_private
from millrace.runtime.redaction import MASK, kept_groups, redact_text, spark_text_regex

SUBMIT_VARIABLE: Final = "PYSPARK_SUBMIT_ARGS"
_NO_ARGUMENTS: Final = "pyspark-shell"
_LOG: Final = Path(__file__).with_name("log4j2.properties")
#: Settings that become arguments of a JVM whatever we do.
_OPTIONS: Final = re.compile(r"^spark\.(driver|executor)\.(extra|default)JavaOptions$")


class SecretInArguments(UserError):
    """A secret is in a setting that Spark makes an argument of, which everybody on the machine can read."""


def as_properties(settings: Mapping[str, str]) -> str:
    r"""Return settings as the text of a Java properties file.

    >>> as_properties({"spark.a": "x=1", "spark.b": " C:\\n", "spark.c": "é\n"})
    'spark.a=x\\=1\nspark.b=\\ C\\:\\\\n\nspark.c=\\u00e9\\n\n'
    """
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    return "".join(map(_character, text))


def _character(character: str) -> str:
    if named := {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}.get(character):
        return named
    if character in "\\ =:#!":
        return "\\" + character
    if " " < character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def refuse_secret_arguments(settings: Mapping[str, str]) -> None:
    """Refuse settings that would put a secret into the list of processes even so.

    Raises:
        SecretInArguments: Java options hold one.
    """
    for name, value in settings.items():
        if _OPTIONS.match(name) and redact_text(value) != value:
            raise SecretInArguments(
                f"{name} holds a secret, and Java's options stand in the list of processes for everybody: "
                "put the option into a file that only you can read, and set JDK_JAVA_OPTIONS=@/that/file"
            )


@contextmanager
def submit_arguments(settings: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Let PySpark start its JVM with these settings while the block runs; the file is gone after it.

    Args:
        settings: All settings of the session.
        folder: A folder of this user alone, which others remove if this process is killed meanwhile.

    Raises:
        UserError: ``PYSPARK_SUBMIT_ARGS`` names a properties file too.
    """
    given = os.environ.get(SUBMIT_VARIABLE)
    words = shlex.split(given or _NO_ARGUMENTS)
    if "--properties-file" in words:
        raise UserError(f"{SUBMIT_VARIABLE} names a properties file: put its settings into spark.conf")
    file = folder / "spark.properties"
    with open_private(file) as written:
        written.write(as_properties(settings))
    os.environ[SUBMIT_VARIABLE] = shlex.join(
        ["--properties-file", str(file), "--load-spark-defaults", *words]
    )
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        if given is None:
            del os.environ[SUBMIT_VARIABLE]
        else:
            os.environ[SUBMIT_VARIABLE] = given


def log_configuration(folder: Path) -> Path:
    """Write what Spark's log is configured by, and return it: secrets are taken out of every message.

    Args:
        folder: A folder of this user alone.
    """
    pattern = spark_text_regex().replace("\\", "\\\\")
    kept = "".join(f"${number}" for number in range(1, kept_groups() + 1))
    file = folder / "log4j2.properties"
    text = _LOG.read_text().replace("@SECRETS@", pattern).replace("@MASK@", kept + MASK)
    with open_private(file) as written:
        written.write(text)
    return file
