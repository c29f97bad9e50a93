"""The embedded broker's settings, files and commands; nothing is started here."""

from __future__ import annotations

import fcntl
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.errors import UserError

HOST: Final = "127.0.0.1"

#: What lets a single node do without others, start at once and stay small. ``compose.yaml`` sets the
#: same, so that tests mean the same on either.
SINGLE_NODE: Final[Mapping[str, str]] = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A consumer need not wait for others to join its group.
    "group.initial.rebalance.delay.ms": "0",
    # A mistyped topic is an error and not a new topic.
    "auto.create.topics.enable": "false",
    # A replay carries the timestamps of its events: by age (7 days is Kafka's default) it would be
    # deleted minutes after it was written.
    "log.retention.ms": "-1",
    # A broker that comes back after a crash is refused until its former self's session has run out
    # (9 s by default).
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    # 128 MB by default, allocated at start: more than the heap of an idle broker.
    "log.cleaner.dedupe.buffer.size": "2097152",
}

_JVM_FLAGS: Final = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
#: A tool that runs for half a second gains nothing from the optimizing compiler.
_TOOL_FLAGS: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_LOG4J: Final = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log_file}
appender.file.filePattern = {log_file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}}{{UTC}}Z %p %c{{1}}: %m%n%ex
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
# Every setting of every client and topic, at info: 300 lines per start.
logger.config.name = org.apache.kafka.common.config
logger.config.level = warn
logger.settings.name = kafka.server.KafkaConfig
logger.settings.level = warn
"""


@dataclass(frozen=True)
class Server:
    """One broker's place and addresses.

    Args:
        root: Its directory: settings, and the data below it.
        log_file: Where it logs.
        port: Where clients connect.
        controller_port: Where its own controller listens.
        settings: Kafka settings that differ from the usual.
    """

    root: Path
    log_file: Path
    port: int
    controller_port: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """The directory that holds the messages."""
        return self.root / "data"

    @property
    def properties_file(self) -> Path:
        """The broker's settings file."""
        return self.root / "server.properties"

    def properties(self) -> dict[str, str]:
        """Return all of the broker's settings."""
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            # Voters by address and not a dynamic quorum: the latter keeps the controller's port in the
            # data, and a kept data directory could not be served from another port.
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            **SINGLE_NODE,
            **self.settings,
        }

    def write(self) -> None:
        """Write the settings files.

        Raises:
            UserError: The directory cannot be written.
        """
        lines = [f"{key}={_escaped(value)}\n" for key, value in self.properties().items()]
        try:
            # What is sent through it lies here; a directory that is there has its owner's rights.
            for folder in (self.root, self.data):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            self.properties_file.write_text("".join(lines))
            self._log4j_file.write_text(_LOG4J.format(log_file=_escaped(str(self.log_file))))
        except OSError as error:
            place = error.filename or self.root
            raise UserError(
                f"cannot write {place}: {error.strerror}; choose another data directory"
            ) from error

    def cluster_id(self) -> str | None:
        """Return the cluster id that the data belongs to, or None while it is not formatted."""
        try:
            lines = (self.data / "meta.properties").read_text().splitlines()
        except FileNotFoundError:
            return None
        return dict(line.partition("=")[::2] for line in lines).get("cluster.id")

    def format_command(self, jvm: Sequence[str], cluster_id: str) -> list[str]:
        """Return the command that formats the data directory for a new cluster.

        Args:
            jvm: Java, its further flags, and the classpath.
            cluster_id: Id of the new cluster.
        """
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.properties_file)]
        return [*jvm, *_TOOL_FLAGS, self._log4j_flag, *tool]

    def run_command(self, jvm: Sequence[str]) -> list[str]:
        """Return the command that runs the broker until it gets SIGTERM.

        Args:
            jvm: Java, its further flags, and the classpath.
        """
        return [*jvm, *_JVM_FLAGS, self._log4j_flag, "kafka.Kafka", str(self.properties_file)]

    def is_in_use(self) -> bool:
        """Say whether a broker runs on the data: it holds a lock on a file there."""
        try:
            lock = (self.data / ".lock").open("r+b")
        except OSError:  # none has run there, or the directory cannot be used at all
            return False
        with lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return True
        return False

    @property
    def _log4j_file(self) -> Path:
        return self.root / "log4j2.properties"

    @property
    def _log4j_flag(self) -> str:
        return f"-Dlog4j2.configurationFile={self._log4j_file}"


def new_id() -> str:
    """Return an id of a cluster or directory in Kafka's form: 16 random bytes as base64url, no dash first."""
    while (made := urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()).startswith("-"):
        pass  # the format tool would take it for an option
    return made


def _escaped(value: str) -> str:
    """Return a value as a Java properties file takes it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
