"""One map of Kafka options for two kinds of clients: librdkafka (confluent-kafka) and Java (Spark).

Most names are the same. Where they differ, the librdkafka spelling is enough, and the Java one follows:
``sasl.username``/``sasl.password`` become a JAAS line, ``ssl.ca.location`` a PEM trust store. An option in
Java's own spelling goes to Spark only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: Set by the connectors themselves; Spark refuses them too.
_OURS: Final = {
    "bootstrap.servers": "set kafka.bootstrap instead",
    "metadata.broker.list": "set kafka.bootstrap instead",
    "auto.offset.reset": "set stream.starting_offsets instead",
    "enable.auto.commit": "offsets are kept in the checkpoint",
    "key.deserializer": "events are read as bytes",
    "value.deserializer": "events are read as bytes",
    "key.serializer": "events are written as bytes",
    "value.serializer": "events are written as bytes",
    "interceptor.classes": "Spark does not allow interceptors",
}
_LOGIN_MODULE: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_JAVA_ONLY: Final = (
    "sasl.jaas.config", "sasl.client.callback.handler.class", "sasl.login.callback.handler.class",
    "ssl.truststore.", "ssl.keystore.type", "ssl.keystore.key", "ssl.keystore.certificate.chain",
)  # fmt: skip
_LIBRDKAFKA_ONLY: Final = (
    "sasl.username", "sasl.password", "ssl.ca.", "ssl.certificate.location", "ssl.key.location",
    "ssl.certificate.pem", "ssl.key.pem", "enable.ssl.certificate.verification",
    "debug", "log_level", "statistics.interval.ms",
)  # fmt: skip


def check_options(options: Mapping[str, str]) -> None:
    """Refuse options that the connectors set themselves or that no client would understand.

    Raises:
        ValueError: Naming the option and what to do; never its value.
    """
    for key in options:
        if key.startswith("kafka."):
            raise ValueError(f"{key}: write it without 'kafka.', which is added where Spark needs it")
        if key in _OURS:
            raise ValueError(f"{key} cannot be set: {_OURS[key]}")


_ADDRESS: Final = re.compile(r"\s*(?:\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):(\d{1,5})\s*")
_LAST_PORT: Final = 65_535


def check_addresses(text: str) -> None:
    """Refuse what names no brokers.

    Args:
        text: ``host:port``, several with commas.

    Raises:
        ValueError: An address is none; which, and not what it says: people put user:password@ before a host.

    Example:
        >>> check_addresses("localhost:9092,[::1]:9093")
    """
    for n, address in enumerate(text.split(","), start=1):
        found = _ADDRESS.fullmatch(address)
        if found is None or int(found[1]) > _LAST_PORT:
            raise ValueError(f"address {n} is not host:port; several are separated by commas")


def client_options(bootstrap: str | None, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for a librdkafka client; those only Java knows are left out.

    >>> client_options("b:9092", {"security.protocol": "SSL", "ssl.truststore.location": "t.jks"})
    {'bootstrap.servers': 'b:9092', 'security.protocol': 'SSL'}
    """
    servers = {"bootstrap.servers": bootstrap} if bootstrap else {}
    return servers | {key: value for key, value in options.items() if not key.startswith(_JAVA_ONLY)}


def spark_options(bootstrap: str | None, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for Spark's Kafka source and sink, each with the prefix ``kafka.``.

    >>> spark_options("b:9092", {"ssl.ca.location": "/ca.pem"})["kafka.ssl.truststore.type"]
    'PEM'
    """
    java = {"bootstrap.servers": bootstrap} if bootstrap else {}
    java |= {key: value for key, value in options.items() if not key.startswith(_LIBRDKAFKA_ONLY)}
    if "sasl.username" in options and "sasl.password" in options:
        module = _LOGIN_MODULE.get(options.get("sasl.mechanism", options.get("sasl.mechanisms", "PLAIN")))
        if module:
            user, password = (_quoted(options[key]) for key in ("sasl.username", "sasl.password"))
            java.setdefault("sasl.jaas.config", f"{module} required username={user} password={password};")
    if "ssl.ca.location" in options and "ssl.truststore.location" not in options:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": options["ssl.ca.location"]}
    if "sasl.mechanisms" in java:
        # librdkafka takes both spellings, Java the singular only.
        java.setdefault("sasl.mechanism", java.pop("sasl.mechanisms"))
    return {f"kafka.{key}": value for key, value in java.items()}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
