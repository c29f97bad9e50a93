"""A data directory as Kafka's tool formats it, without a JVM that runs a second for two small files.

What the tool writes for a set of jars is kept; a temporary broker begins with a copy that has ids of its own.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from millrace.kafka.server import Server, new_id
from millrace.local.class_archive import fingerprint
from millrace.local.jar_cache import cache_root
from millrace.local.java_check import Java
from millrace.local.private import is_ours

#: What a formatted directory has. The one with the ids comes last: with it, the directory is formatted.
_FILES: Final = ("bootstrap.checkpoint", "meta.properties")


class Formatted:
    """What Kafka's tool wrote for some jars, if it is kept.

    Args:
        java: The Java that runs the broker.
        jars: Its classpath.
    """

    def __init__(self, java: Java, jars: Sequence[Path]) -> None:
        self._folder = cache_root().with_name("formatted") / fingerprint(java, jars)

    def copy_to(self, server: Server) -> str | None:
        """Format a broker's directory for a new cluster and return its id; ``None``: nothing is kept."""
        if server.settings or not all(is_ours(self._folder / name) for name in _FILES):
            return None
        cluster = new_id()
        with suppress(OSError):
            checkpoint, about = ((self._folder / name).read_bytes() for name in _FILES)
            for name, value in ((b"cluster.id", cluster), (b"directory.id", new_id())):
                line = b"%b=%b" % (name, value.encode())
                about, found = re.subn(b"(?m)^%b=.*$" % re.escape(name), line, about)
                if found != 1:
                    return None  # of another form: the tool knows it
            (server.data / _FILES[0]).write_bytes(checkpoint)
            (server.data / _FILES[1]).write_bytes(about)
            return cluster
        return None

    def keep(self, server: Server) -> None:
        """Keep what the tool has just written; where that cannot be done, the next start takes it again."""
        if server.settings or sorted(file.name for file in server.data.iterdir()) != sorted(_FILES):
            return
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as arriving:  # several may keep at once
                for name in _FILES:
                    shutil.copyfile(server.data / name, file := Path(arriving) / name)
                    file.replace(self._folder / name)

    def forget(self) -> None:
        """Let the next broker be formatted by the tool."""
        shutil.rmtree(self._folder, ignore_errors=True)
