"""What the dashboard reads from a real broker: where topics end, what is not read yet, the last records."""

from __future__ import annotations

import time
from pathlib import Path

from millrace.dashboard.broker import Broker
from millrace.dashboard.common_panels import standing
from millrace.dashboard.data import AppData
from millrace.dashboard.serve import open_page
from millrace.dashboard.views import Numbers
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.demo_settings import publish_settings
from millrace.runtime.settings import AppSettings
from millrace.testing.kafka import Record, TopicFactory, produce
from tests.unit.millrace.dashboard.cases import Clock, put_checkpoint, shop


def test_ends_and_last_records_of_topics(kafka_bootstrap: str, topic_factory: TopicFactory) -> None:
    clock = Clock()
    broker = Broker({"bootstrap.servers": kafka_bootstrap}, clock)
    topic = topic_factory(2)
    deadline = time.monotonic() + 10
    while (
        len(broker.ends([topic])[topic]) < 2 and time.monotonic() < deadline
    ):  # its leaders are being chosen
        clock.later()
    assert broker.tail(topic, 5) == []
    assert broker.ends([topic, "no-such-topic"]) == {topic: {0: 0, 1: 0}}
    records = [Record(f"v{n}", key=f"k{n}", partition=n % 2, timestamp_ms=1_000 + n) for n in range(9)]
    produce(kafka_bootstrap, topic, records)
    assert broker.ends([topic, "no-such-topic"]) == {topic: {0: 0, 1: 0}}  # asked a moment ago
    clock.later()
    assert broker.ends([topic]) == {topic: {0: 5, 1: 4}}
    found = broker.tail(topic, 3)
    assert [(r.key, r.value, r.at_ms) for r in found] == [
        (b"k6", b"v6", 1_006), (b"k7", b"v7", 1_007), (b"k8", b"v8", 1_008),
    ]  # fmt: skip


def test_lag_is_what_the_checkpoint_has_not_read(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = topic_factory(2)
    produce(kafka_bootstrap, topic, [Record("x", partition=n % 2) for n in range(10)])
    put_checkpoint(tmp_path, {topic: {"0": 3, "1": 5}}, batch=2)
    base = shop()
    app = App(base.name, base.summary, base.settings, base.topology, lambda s: Topics((Topic(topic, 2),)))
    settings = AppSettings(kafka={"bootstrap": kafka_bootstrap})
    view = standing(AppData(app, settings, tmp_path, Clock()))
    assert isinstance(view, Numbers)
    lag = next(n for n in view.items if n.label == "lag")
    assert (lag.value, lag.note) == (2, f"{topic} 2")


def test_beside_a_demo_the_dashboard_knows_the_lag_by_what_the_demo_tells(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = topic_factory(2)
    produce(kafka_bootstrap, topic, [Record("x", partition=n % 2) for n in range(10)])
    put_checkpoint(tmp_path, {topic: {"0": 3, "1": 5}}, batch=2)
    clock = Clock()
    data = open_page("iot", root=tmp_path, clock=clock).data
    with publish_settings(tmp_path, [f"kafka.bootstrap={kafka_bootstrap}", f"topics.readings={topic}"]):
        data.listen()
        view = standing(data)
    assert isinstance(view, Numbers)
    assert next(n for n in view.items if n.label == "lag").value == 2
    data.listen()
    view = standing(data)
    assert isinstance(view, Numbers)
    assert "no broker named" in view.items[-1].note  # the demo is over
