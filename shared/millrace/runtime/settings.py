"""Settings of every app: typed, checked, from four sources, each value with its origin.

Defaults < ``millrace.yaml`` < environment ``MILLRACE__…`` < ``--set`` on the command line. An app adds
fields of its own by subclassing::

    class FraudSettings(AppSettings):
        alert_threshold: float = 3.0

    settings = load_settings(FraudSettings, app="fraud", overrides=["stream.trigger_interval=500ms"])

The file has a section ``common`` and one per app, whose own values win::

    common:
      kafka: {bootstrap: "broker:9092"}
    fraud:
      alert_threshold: 4
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from millrace.connectors.router import DRIVER_WRITE_MAX_RECORDS
from millrace.kafka.options import check_addresses, check_options, client_options, spark_options
from millrace.runtime.installed import list_apps
from millrace.runtime.redaction import MASK, is_secret, shown
from millrace.runtime.secrets import OptionMap
from millrace.runtime.settings_sources import COMMON, Collector, Entry, SettingsError, config_path
from millrace.time import ms
from millrace.time.clock import skew_ms
from millrace.time.durations import format_duration, parse_duration

__all__ = [
    "AppSettings",
    "Duration",
    "EncryptionSettings",
    "KafkaSettings",
    "MemorySize",
    "OperatorsSettings",
    "OptionMap",
    "SettingsError",
    "SparkSettings",
    "StateSettings",
    "StorageSettings",
    "StreamSettings",
    "flat",
    "load_settings",
    "origins",
    "redacted",
]

log = logging.getLogger(__name__)

#: The origin of a value that no source sets.
DEFAULT = "default"
#: The most stations that there may be.
MOST_STATIONS: Final = 64

#: A ``timedelta`` written as ``"5 seconds"``, ``"500ms"``, ``"PT5S"`` or a number of milliseconds.
Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda value: format_duration(ms(value)), return_type=str, when_used="json"),
]


def _skew(value: Any) -> int | None:
    return None if value is None else skew_ms(value)


#: A duration that may be negative, in milliseconds; ``"off"`` is ``None``.
Skew = Annotated[
    int | None,
    BeforeValidator(_skew),
    PlainSerializer(
        lambda value: "off" if value is None else f"{'-' * (value < 0)}{format_duration(abs(value))}",
        return_type=str,
        when_used="json",
    ),
]


def _memory_size(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[kmgt]b?", value.strip(), re.IGNORECASE):
        raise ValueError(f'{value!r} is not a size: write for example "1g" or "512m"')
    return value.strip().lower().removesuffix("b")


#: A size of memory as the JVM takes it: ``"512m"``, ``"1g"``.
MemorySize = Annotated[str, AfterValidator(_memory_size)]


class Section(BaseModel):
    """A group of settings; unknown keys are errors, values do not change once loaded.

    Attributes:
        FORMER: Former name of a key → today's. Sources may say the former one for one version.
    """

    FORMER: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)


class KafkaSettings(Section):
    """The broker and how to reach it."""

    bootstrap: str | None = Field(
        default=None, description="host:port, several with commas; without it an embedded broker is started"
    )
    options: OptionMap = Field(
        default_factory=OptionMap,
        description="passed to every Kafka client, for example security.protocol; without the prefix kafka.",
    )

    output_suffix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="what the names of output topics end with, of a second version beside the one that runs; "
        "a job that has one sends no ticks",
    )

    @field_validator("bootstrap")
    @classmethod
    def _addresses(cls, value: str | None) -> str | None:
        if value is not None:
            check_addresses(value)
        return value

    @field_validator("options")
    @classmethod
    def _options(cls, value: OptionMap) -> OptionMap:
        check_options(value)
        return value

    def client_options(self) -> dict[str, str]:
        """Return the options for librdkafka (confluent-kafka), secrets included; never print them."""
        return client_options(self.bootstrap, self.options)

    def spark_options(self) -> dict[str, str]:
        """Return the options for Spark's Kafka source and sink, secrets included; never print them."""
        return spark_options(self.bootstrap, self.options)


class SparkSettings(Section):
    """The Spark session."""

    master: str = Field(
        default="local[*]", pattern=r"^(local(\[(\*|\d+)(,\d+)?\])?|spark://.+|yarn|k8s://.+)$"
    )
    shuffle_partitions: int | None = Field(
        default=None, ge=1, le=10_000, description="default: cores; fixed by the checkpoint"
    )
    driver_memory: MemorySize = "1g"
    quick_start: bool | None = Field(
        default=None,
        description="let the JVM compile less: starts sooner, long runs of large batches are slower; "
        "default: where a run until the end has no more than a million events before it",
    )
    key_groups: int = Field(
        default=64, ge=1, le=32_768, description="most that state can be spread to; fixed by the checkpoint"
    )
    conf: OptionMap = Field(default_factory=OptionMap, description="passed to Spark as it is: spark.…")

    @field_validator("conf")
    @classmethod
    def _conf(cls, value: OptionMap) -> OptionMap:
        for key in value:
            if not key.startswith("spark."):
                raise ValueError(f"{key}: Spark's own settings start with 'spark.'")
        return value


class StorageSettings(Section):
    """Where tables and checkpoints live."""

    root: str = Field(
        default=".millrace/app", min_length=1, description="a folder or a URI such as s3a://bucket/path"
    )
    retention: dict[str, Duration] = Field(
        default_factory=dict,
        description="table → how long its rows are kept, by their event time, e.g. {transactions: 400d}; "
        "`millrace tables expire` removes what is older. Of other tables everything is kept",
    )

    @field_validator("root", mode="before")
    @classmethod
    def _root(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    def path(self, *parts: str) -> str:
        """Return a place under the root, e.g. ``path("tables", "alerts")``; local places are absolute."""
        local = self.local_root
        return str(local.joinpath(*parts)) if local else "/".join([self.root.rstrip("/"), *parts])

    @property
    def local_root(self) -> Path | None:
        """The root as an absolute path, or None if it is not on a local file system."""
        scheme, found, rest = self.root.partition("://")
        if found and scheme != "file":
            return None
        return Path(rest if found else self.root).expanduser().absolute()


class StreamSettings(Section):
    """Pace, order and starting point of the stream."""

    FORMER = {"driver_records": "driver_write_max_records"}

    trigger_interval: Duration = Field(
        default=timedelta(0), description="0: the next batch starts when the last one is done"
    )
    max_offsets_per_trigger: int | None = Field(default=100_000, ge=1, description="most events of one batch")
    out_of_orderness: Duration = Field(
        default=timedelta(seconds=5), description="how far events may come out of order"
    )
    max_future_skew: Duration = Field(
        default=timedelta(minutes=1),
        description="events further ahead of the broker's clock go to the dead letters",
    )
    tick_interval: Duration | None = Field(
        default=None, description="how often processing time ticks; unset: not at all"
    )
    idle_after: Duration | None = Field(
        default=None,
        description="event time goes on by itself after this long without input; unset: it waits",
    )
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    max_dead_letter_ratio: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="a batch with a larger share of dead letters stops the query unwritten",
    )
    keep_headers: Literal["all", "unreadable"] = Field(
        default="unreadable",
        description="whose Kafka headers go into the dead letters; all costs a quarter of the JVM's work",
    )
    clock_skew: Skew = Field(
        default=0,
        description="how much after its arrival an event may claim to have happened and still move time; "
        "may be negative; off: any",
    )
    full_batches: int = Field(
        default=2,
        ge=1,
        description="so many batches at their limit in a row hold time back together; more for topics in "
        "which transactions are often aborted",
    )
    follow: Literal["furthest", "slowest"] = Field(
        default="furthest",
        description="whether time is that of the partition which is ahead, or of the one that is behind",
    )
    source_idle_after: Duration | None = Field(
        default=None,
        description="with follow=slowest: a partition silent for longer than this is waited for no more",
    )
    plan: Literal["auto", "station", "chain"] = Field(
        default="auto",
        description="station: all processes in one task, for little delay; chain: an operator for each, in "
        "as many tasks as there are partitions, for much data; auto: what the checkpoint has, or what fits",
    )
    stations: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_STATIONS)] = Field(
        default="auto",
        description="how many stations share the work, each with a core of its own: several only where the "
        "app's topology names a locality; auto: what the checkpoint has, else one for each core",
    )
    driver_write_max_records: int = Field(
        default=DRIVER_WRITE_MAX_RECORDS,
        ge=0,
        description="batches up to this size are written by the driver, larger ones by Spark",
    )
    merge_interval: Duration = Field(
        default=timedelta(seconds=2),
        description="how long rows of tables with one row per key wait, so that several batches are merged "
        "at once, while those of others are appended behind the batches; 0: all rows of a batch are in their "
        "tables before it is done",
    )


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


#: A file's path as text.
PathText = Annotated[str, Field(min_length=1), BeforeValidator(_as_text)]


class EncryptionSettings(Section):
    """Encryption of state; a key in ``MILLRACE_STATE_SECRET_KEYS`` turns it on as well."""

    key_file: PathText | None = Field(
        default=None,
        description="file of the keys that state is encrypted with, the same wherever Spark runs; "
        "made by `millrace keygen`",
    )


class StateSettings(Section):
    """How state is kept."""

    encryption: EncryptionSettings = EncryptionSettings()


class OperatorsSettings(Section):
    """Who may change something: see ``millrace operators``."""

    file: PathText | None = Field(
        default=None,
        description="file of the operators, their roles and the hashes of their tokens; where it is, "
        "changing something takes a token. Default operators.json in .millrace or MILLRACE_HOME",
    )


class MetricsSettings(Section):
    """Metrics of a running job for Prometheus, and whether it is well, over HTTP."""

    port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="where /metrics, /healthz and /readyz answer; 0: a free one, told by `millrace status`; "
        "unset: nowhere",
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; there is neither a login nor encryption: another one only "
        "where the network is yours",
    )
    ready_lag: int = Field(
        default=1_000_000, ge=0, description="most records that may wait in the topics of a job that is ready"
    )
    ready_age: Duration = Field(
        default=timedelta(minutes=1),
        description="for how long the query of a job that is ready may have shown nothing: no batch, and not "
        "that there is nothing to do",
    )
    dead_after: Duration = Field(
        default=timedelta(minutes=5),
        description="after so long without such a sign a job is not healthy; no less than ten times "
        "stream.trigger_interval",
    )
    spark_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="where Spark's own page and its own metrics for Prometheus answer (/metrics/prometheus, "
        "/metrics/executors/prometheus), at metrics.host; unset: nowhere",
    )


class AppSettings(BaseSettings):
    """What every app can be told; apps subclass it to add fields of their own.

    Making one reads nothing but its arguments; :func:`load_settings` reads file, environment and overrides.

    Attributes:
        DEFAULT_ROOT: Where tables and checkpoints of an app are, unless that is set.
    """

    DEFAULT_ROOT: ClassVar[str] = ".millrace/{app}"

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
        # An app may write `stream: StreamSettings = StreamSettings(out_of_orderness=…)`; setting another key
        # of that section in the file must not bring back the general default.
        nested_model_default_partial_update=True,
    )

    kafka: KafkaSettings = KafkaSettings()
    spark: SparkSettings = SparkSettings()
    storage: StorageSettings = StorageSettings()
    stream: StreamSettings = StreamSettings()
    state: StateSettings = StateSettings()
    operators: OperatorsSettings = OperatorsSettings()
    metrics: MetricsSettings = MetricsSettings()
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="how lines of logs/job.log under storage.root look; json: an object per line, with query "
        "and batch",
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def came_from(self) -> dict[str, str]:
        """Return where the values came from that are not the defaults, by dotted key; it may be added to."""
        return self._origins

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leave out the library's environment source: it cannot name an unknown variable, ours does."""
        return (init_settings,)


S = TypeVar("S", bound=AppSettings)


def load_settings(
    cls: type[S],
    *,
    app: str,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> S:
    """Return the settings of ``app`` from all sources.

    Args:
        cls: The app's settings class.
        app: The app's name: its section of the file, and the default place of its tables.
        config: The settings file; default ``MILLRACE_CONFIG``, else ``./millrace.yaml`` if it exists.
        overrides: ``key=value`` from the command line, e.g. ``"kafka.bootstrap=host:9092"``.
        env: The environment; default that of this process.

    Returns:
        The settings; :func:`origins` tells where each value came from.

    Raises:
        SettingsError: With one line per problem: unknown keys, values that cannot be used, unreadable file.

    >>> settings = load_settings(AppSettings, app="demo", overrides=["stream.trigger_interval=1 min"], env={})
    >>> settings.stream.trigger_interval, origins(settings)["stream.trigger_interval"]
    (datetime.timedelta(seconds=60), '--set stream.trigger_interval')
    """
    env = os.environ if env is None else env
    collector = Collector(cls)
    entries: list[Entry] = []
    if (path := config_path(config, env)) is not None:
        entries += collector.file(path, [COMMON, app], list_apps(), AppSettings)
    entries += collector.environment(env)
    entries += collector.overrides(overrides)
    values: dict[str, Any] = {"storage": {"root": cls.DEFAULT_ROOT.format(app=app)}}
    for entry in entries:
        _put(values, entry)
    found = {".".join(entry.path): entry.origin for entry in entries}
    try:
        settings = cls(**values)
    except ValidationError as error:
        collector.problems += [
            _problem(e["loc"], e["msg"], e["type"], found) for e in error.errors(include_input=False)
        ]
    for notice in collector.notices:
        _tell_once(notice)
    if collector.problems:
        # Raised outside the handler: pydantic's own error would carry the input, secrets included.
        raise SettingsError(collector.problems)
    settings.came_from().update(found)
    return settings


@cache
def _tell_once(notice: str) -> None:
    log.warning("%s", notice)


def origins(settings: AppSettings) -> dict[str, str]:
    """Return where each value came from, by dotted key.

    An origin is ``"default"``, ``"millrace.yaml:3"`` (file and line), the name of an environment variable, or
    ``"--set KEY"``.
    """
    known = settings.came_from()
    return {key: known.get(key, DEFAULT) for key in flat(redacted(settings))}


def redacted(settings: BaseModel) -> dict[str, Any]:
    """Return the settings as plain values that may be shown: every secret is ``********``."""
    return {name: _shown(name, getattr(settings, name)) for name in type(settings).model_fields}


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, BaseModel):
        return redacted(value)
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, Mapping):
        return {str(key): _shown(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(name, item) for item in value]
    if isinstance(value, timedelta):
        return format_duration(ms(value))
    if value is None or isinstance(value, bool | int | float):
        return value if value is None or shown(name, "") != MASK else MASK
    return shown(name, str(value))


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted key, e.g. ``{"kafka.bootstrap": …}``."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


def _put(values: dict[str, Any], entry: Entry) -> None:
    at = values
    for part in entry.path[:-1]:
        at = at.setdefault(part, {})
    at[entry.path[-1]] = entry.value


def _problem(loc: tuple[int | str, ...], message: str, kind: str, found: Mapping[str, str]) -> str:
    key = ".".join(map(str, loc))
    inside = [o for k, o in found.items() if k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.")]
    # Validators of ours speak for themselves; "Value error, " is pydantic's addition.
    text = message.removeprefix("Value error, ")
    if is_secret(key) and kind == "value_error":
        text = "not a valid value (not shown, it is a secret)"
    if kind == "string_pattern_mismatch" and key == "spark.master":
        text = "write local[*], local[N], spark://host:port, yarn or k8s://…"
    return f"{', '.join(dict.fromkeys(inside)) or DEFAULT}: {key}: {text}"
