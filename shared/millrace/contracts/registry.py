"""A schema registry as the codecs use it; over it stands confluent-kafka's own client."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

from millrace.contracts.wire import CodecError
from millrace.errors import MillraceError, UserError

Kind = Literal["AVRO", "PROTOBUF", "JSON"]
#: What confluent-kafka's registry client imports, beside itself.
PACKAGES: Final = ("attrs", "authlib", "cachetools", "httpx2")


class RegistryError(MillraceError):
    """The registry did not answer, or refused a schema; not the fault of an event."""


class Registry(Protocol):
    """Knows schemas by id."""

    def register(self, subject: str, text: str, kind: Kind) -> int:
        """Return the id of a schema, which becomes a version of the subject unless it is one."""

    def schema(self, schema_id: int) -> str:
        """Return the text of a schema.

        Raises:
            CodecError: The registry does not know the id; its reason is ``unknown_version``.
        """


class ConfluentRegistry:
    """A registry that speaks Confluent's protocol, asked once for each schema.

    Args:
        config: Configuration of ``confluent_kafka.schema_registry.SchemaRegistryClient``, e.g.
            ``{"url": "http://registry:8081"}``; ``mock://NAME`` is one in memory.
        client: A client to use instead.

    Raises:
        UserError: The packages that the client needs are not installed, or it does not take the
            configuration.

    Example:
        >>> registry = ConfluentRegistry({"url": "http://registry:8081"})  # doctest: +SKIP
    """

    def __init__(self, config: Mapping[str, Any] | None = None, *, client: Any = None) -> None:
        try:
            from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

            silent: type[Exception] = importlib.import_module("httpx2").HTTPError
        except ImportError as error:
            raise UserError(
                f"a schema registry's client needs more packages: pip install {' '.join(PACKAGES)} ({error})"
            ) from error
        try:
            self._client = client or SchemaRegistryClient.new_client(dict(config or {}))
        except ValueError as error:
            raise UserError(f"the schema registry's configuration: {error}") from error
        self._schema_type, self._refused = Schema, SchemaRegistryError
        self._unanswered = (silent, OSError)
        self._ids: dict[tuple[str, str], int] = {}
        self._texts: dict[int, str] = {}

    def register(self, subject: str, text: str, kind: Kind) -> int:
        """Return the id of a schema, which becomes a version of the subject unless it is one.

        Raises:
            RegistryError: The registry does not answer, or refuses it as incompatible.
        """
        found = self._ids.get((subject, text))
        if found is None:
            try:
                found = int(self._client.register_schema(subject, self._schema_type(text, kind)))
            except (self._refused, *self._unanswered) as error:
                raise RegistryError(f"the registry did not take the schema of {subject}: {error}") from error
            self._ids[subject, text] = found
        return found

    def schema(self, schema_id: int) -> str:
        """Return the text of a schema.

        Raises:
            CodecError: The registry does not know the id.
            RegistryError: It does not answer.
        """
        found = self._texts.get(schema_id)
        if found is None:
            try:
                found = str(self._client.get_schema(schema_id).schema_str)
            except self._refused as error:
                if error.http_status_code == 404:
                    raise CodecError(
                        "unknown_version", f"the registry knows no schema {schema_id}"
                    ) from error
                raise RegistryError(f"the registry did not give schema {schema_id}: {error}") from error
            except self._unanswered as error:
                raise RegistryError(f"the registry did not give schema {schema_id}: {error}") from error
            self._texts[schema_id] = found
        return found
