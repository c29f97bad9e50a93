"""One stream through the app on this machine, to which other ways of running it are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from millrace.kafka.admin import SENT_TIME, TopicSpec, create_topics, delete_topics
from tests.e2e.fraud_runs import run_to_end
from tests.e2e.fraud_stream import FraudStream, FraudTopics, ordered_stream, with_labels


class Reference(NamedTuple):
    """A stream that was processed.

    Attributes:
        stream: The stream.
        topics: Where it is, and where its outputs went.
        root: Where its tables are.
        said: What the command printed.
    """

    stream: FraudStream
    topics: FraudTopics
    root: Path
    said: str


@pytest.fixture(scope="session")
def reference(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """The ordered stream in five batches, written by the driver."""
    made: list[str] = []

    def make(partitions: int = 1, *, prefix: str = "test", config: Mapping[str, str] | None = None) -> str:
        name = f"{prefix}-{uuid4().hex[:12]}"
        create_topics(kafka_bootstrap, {name: TopicSpec(partitions, {**SENT_TIME, **(config or {})})})
        made.append(name)
        return name

    topics, stream = FraudTopics.make(make), with_labels(ordered_stream())
    stream.send(kafka_bootstrap, topics)
    root = tmp_path_factory.mktemp("reference") / "app"
    said = run_to_end(kafka_bootstrap, topics, root, ["stream.max_offsets_per_trigger=1800"])
    yield Reference(stream, topics, root, said)
    delete_topics(kafka_bootstrap, made)
