"""Values that hide themselves: options whose secrets are given to clients and never printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from millrace.runtime.redaction import shown


class OptionMap(dict[str, str]):
    """Options passed through to Kafka or Spark, whose secret values are hidden in every printed form.

    Reading a value (``options["sasl.password"]``, ``dict(options)``) gives it as it is; ``repr``,
    ``str`` and pydantic's dumps give ``********`` for names that
    :func:`~millrace.runtime.redaction.is_secret` knows.

    >>> OptionMap({"sasl.username": "bob", "sasl.password": "hunter2"})
    {'sasl.username': 'bob', 'sasl.password': '********'}
    """

    def redacted(self) -> dict[str, str]:
        """Return the options as they may be shown."""
        return {key: shown(key, value) for key, value in self.items()}

    def __repr__(self) -> str:
        return repr(self.redacted())

    __str__ = __repr__

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Validate a mapping of texts, numbers and booleans; serialize it redacted."""
        return core_schema.no_info_plain_validator_function(
            cls._validated,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda options: options.redacted()
            ),
        )

    @classmethod
    def _validated(cls, value: Any) -> OptionMap:
        if not isinstance(value, Mapping):
            raise ValueError("write a mapping of option names to values")
        return cls({_option_name(key): _option_value(key, item) for key, item in value.items()})


def _option_name(key: Any) -> str:
    if not isinstance(key, str) or not key.strip():
        raise ValueError("an option's name is text")
    return key


def _option_value(key: str, value: Any) -> str:
    # YAML reads `enable.x: true` and `timeout.ms: 30000` as such; clients want text.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"the value of {key} must be text, a number or true/false (quote it in YAML)")
