"""What must never be printed: which names are secret, and values that hide themselves.

One rule for everything that shows settings, errors or options: :func:`is_secret` decides by name,
:class:`OptionMap` hides such values in every printed form, :func:`redact_text` cleans free text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

#: What stands for a secret wherever it would be shown.
MASK: Final = "********"

_HIDDEN: Final = (
    r"password|passwd|passphrase|secret|token|jaas|credential|private|access[._-]?key|api[._-]?key"
    r"|user[._]?info|ssl[._]key[._]pem|keystore[._]key|oauthbearer[._]config"
)
_SECRET_NAME: Final = re.compile(_HIDDEN, re.IGNORECASE)
# Names that match but hold no secret: where a key lies is what one needs to see.
_HARMLESS_NAME: Final = re.compile(r"token[._]endpoint|credentials[._](source|provider)$", re.IGNORECASE)
# userinfo of a URI: scheme://user:secret@host. The user stays, it says which account is meant.
_URI_PASSWORD: Final = re.compile(r"(?<=://)([^/@\s:]*):([^/@\s]+)@")
_ASSIGNMENT: Final = re.compile(
    rf"([\w.\-]*(?:{_HIDDEN})[\w.\-]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&)}}\]]+)", re.IGNORECASE
)


def is_secret(name: str) -> bool:
    """Say whether values under ``name`` (an option, a key, a dotted path) must not be shown.

    >>> is_secret("sasl.password"), is_secret("spark.hadoop.fs.s3a.access.key"), is_secret("sasl.mechanism")
    (True, True, False)
    """
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def redact_text(text: str) -> str:
    """Return free text (a message, a URI) without passwords in URIs and in ``name=value`` pairs.

    >>> redact_text("s3a://bob:hunter2@lake/tables")
    's3a://bob:********@lake/tables'
    >>> redact_text("user=bob password='hunter2' failed")
    'user=bob password=******** failed'
    """
    return _ASSIGNMENT.sub(rf"\1{MASK}", _URI_PASSWORD.sub(rf"\1:{MASK}@", text))


def shown(name: str, value: str) -> str:
    """Return ``value`` as it may be shown under ``name``."""
    return MASK if is_secret(name) else redact_text(value)


class OptionMap(dict[str, str]):
    """Options passed through to Kafka or Spark, whose secret values are hidden in every printed form.

    Reading a value (``options["sasl.password"]``, ``dict(options)``) gives it as it is; ``repr``,
    ``str`` and pydantic's dumps give ``********`` for names that :func:`is_secret` knows.

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
