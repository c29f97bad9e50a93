"""A real Apache Kafka broker in a process of its own, for tests, demos and development.

The jars come from ``jars.lock``; nothing but Java has to be installed. A broker ends with the process that
started it, also when that is killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from millrace.kafka.admin import cluster_id
from millrace.kafka.launch import READY_TIMEOUT_S, launch
from millrace.kafka.server import Server
from millrace.local.class_archive import keep_archive
from millrace.local.home import home
from millrace.local.processes import Child

#: Environment variable that names a broker to use instead of an embedded one.
BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"

_KEPT_LOGS = 10


class EmbeddedBroker:
    """A Kafka broker in its own JVM, as a context manager; several at once are possible.

    Args:
        data_dir: Its directory, kept; by default a temporary one, deleted at the end.
        port: Where clients connect; by default a free one.
        log_dir: Where its log file goes, which is kept; by default ``logs`` in ``data_dir``, else in the
            project's run-time folder, where the last ten are kept.
        settings: Kafka settings that differ from the usual.
        ready_timeout_s: Seconds that it may take to answer.

    Raises:
        UserError: On entering: no usable Java, jars that cannot be had, a port that is taken, a directory
            that cannot be written or is in use, or a broker that did not start or answer in time.

    Example:
        >>> with EmbeddedBroker() as broker:  # doctest: +SKIP
        ...     print(broker.bootstrap)
        127.0.0.1:40123
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        port: int | None = None,
        log_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        self._data_dir = data_dir.absolute() if data_dir else None
        self._port = port
        self._log_dir = log_dir.absolute() if log_dir else None
        self._settings = dict(settings or {})
        self._ready_timeout_s = ready_timeout_s
        self._root: Path | None = None
        self._started: tuple[Server, Child] | None = None

    def start(self) -> None:
        """Start it, and return when it answers; data that is there already is served again."""
        self._root = self._root or self._data_dir or Path(tempfile.mkdtemp(prefix="millrace-kafka-"))
        root, log_file, temporary = self._root, self._choose_log(self._root), self._data_dir is None

        def child(command: list[str]) -> Child:
            return Child(command, log_file=log_file, cwd=root, remove_if_orphaned=[root] if temporary else [])

        try:
            self._started = launch(
                child,
                root=root,
                log_file=log_file,
                port=self._port,
                settings=self._settings,
                ready_timeout_s=self._ready_timeout_s,
                temporary=temporary,
            )
        except BaseException:
            self._delete_temporary()
            raise

    def stop(self) -> None:
        """Stop it cleanly, and delete its data if that is temporary; harmless when it does not run."""
        if self._started and self._root:
            keep_archive(self._root, self._child.stop())
        self._delete_temporary()

    def kill(self) -> None:
        """End it as a crash would (SIGKILL); its data stays for :meth:`restart`."""
        self._child.kill()

    def restart(self) -> None:
        """Start it again at the same address with the same data; a running one is stopped first."""
        self._child.stop()
        self._port = self._server.port
        self.start()

    @property
    def bootstrap(self) -> str:
        """Its address for clients."""
        return self._server.bootstrap

    @property
    def pid(self) -> int:
        """Process id of its JVM."""
        return self._child.pid

    @property
    def log_file(self) -> Path:
        """Its log, kept after its end."""
        return self._server.log_file

    @property
    def data_dir(self) -> Path:
        """Its directory."""
        return self._server.root

    def is_alive(self) -> bool:
        """Say whether its JVM runs."""
        return self._started is not None and self._child.is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _server(self) -> Server:
        return self._parts()[0]

    @property
    def _child(self) -> Child:
        return self._parts()[1]

    def _parts(self) -> tuple[Server, Child]:
        if self._started is None:
            raise RuntimeError("the broker has not been started: use it in a with statement, or call start()")
        return self._started

    def _choose_log(self, root: Path) -> Path:
        if self._data_dir and not self._log_dir:
            return root / "logs" / "broker.log"
        if self._log_dir:
            return self._log_dir / f"{root.name}.log"
        logs = home() / "logs"
        _prune(logs)
        return logs / f"{root.name}.log"

    def _delete_temporary(self) -> None:
        if self._root and not self._data_dir:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None


@contextmanager
def broker_or_embedded(
    bootstrap: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    timeout_s: float = 5.0,
    log_dir: Path | None = None,
) -> Iterator[str]:
    """Give the address of a broker: the one that is named, or else an embedded one for the while.

    Args:
        bootstrap: ``host:port`` of a broker, several with commas; by default what the environment variable
            ``KAFKA_BOOTSTRAP_SERVERS`` says.
        options: Kafka client options, security among them, for a broker that is named.
        environ: The environment to read.
        timeout_s: Seconds that a named broker may take to answer.
        log_dir: Where an embedded broker's log goes.

    Yields:
        The address.

    Raises:
        BrokerUnreachable: The named broker does not answer.
        UserError: The embedded one could not be started.

    Example:
        >>> with broker_or_embedded() as bootstrap:  # doctest: +SKIP
        ...     create_topics(bootstrap, {"events": TopicSpec(partitions=4)})
    """
    if named := bootstrap or environ.get(BOOTSTRAP_VARIABLE):
        cluster_id(named, timeout_s, options)
        yield named
        return
    with EmbeddedBroker(log_dir=log_dir) as broker:
        yield broker.bootstrap


def _prune(logs: Path) -> None:
    """Delete the oldest logs of brokers that had no directory of their own."""
    found = sorted(logs.glob("millrace-kafka-*.log*"), key=lambda path: path.stat().st_mtime)
    for path in found[: -_KEPT_LOGS + 1]:
        path.unlink(missing_ok=True)
