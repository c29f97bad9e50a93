"""An event type is written once, by the app that reads it; its generator sends that."""

from __future__ import annotations

import ast
from itertools import islice
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from millrace.runtime.apps import load_app
from millrace.topology.definition import Topology
from millrace_apps.generators.domains import load
from millrace_apps.generators.engine.profile import Profile
from millrace_apps.generators.ridesharing import NearestDispatcher, RidesProfile, World

ROOT = Path(__file__).resolve().parents[3]
#: Domain → app whose world it is.
APPS = {
    "fraud": "fraud",
    "clickstream": "clickstream",
    "iot": "iot",
    "ridesharing": "ridesharing",
}
#: Fields that an app knows and its generator says nothing of.
UNSAID = {
    "clickstream": {"page_view_id", "client_sent_ms", "told"},
    "iot": {"point", "received_ms", "failed_ms"},
    "ridesharing": {"mock", "region", "pickup_point"},
}


def types_of(topology: Topology) -> set[type]:
    """Return the types of all that an app takes."""
    return {
        kind
        for link in topology.links
        for kind in (link.process.inputs or {"": link.process.event_type}).values()
    }


@pytest.mark.parametrize("domain", APPS)
def test_a_domain_sends_the_event_types_that_its_app_reads(domain: str) -> None:
    app = load_app(APPS[domain])
    read = types_of(app.topology(app.settings()))
    for stream, spec in load(domain).streams.items():
        assert spec.event_type in app.contracts.values(), stream
        assert spec.event_type in read or spec.event_type.__module__.startswith("millrace_apps.fraud"), stream


@pytest.mark.parametrize("domain", ["fraud", "clickstream", "iot", "ridesharing"])
def test_a_generator_defines_no_type_that_an_app_has_in_its_contracts(domain: str) -> None:
    """But of what agents hear of any dispatcher: the fields that they go by."""
    app = load_app(APPS[domain])
    kinds = [one for kind in app.contracts.values() for one in (get_args(kind) or (kind,))]
    theirs = {kind.__name__ for kind in kinds}
    heard = {"Offer", "Assignment", "Quote"} if domain == "ridesharing" else set()
    for path in sorted((ROOT / "generators" / domain).rglob("*.py")):
        named = {
            node.name
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.ClassDef)
        }
        assert named & theirs - heard == set(), path.name


@pytest.mark.parametrize("domain", ["clickstream", "iot"])
def test_what_is_sent_is_what_the_contract_reads_and_says_nothing_that_it_does_not_know(domain: str) -> None:
    world = load(domain)
    profile: Profile = world.profile(seed=3)
    seen = set()
    for happened in islice(world.simulate(profile), 4_000):
        kind = world.streams[happened.stream].event_type
        assert type(happened.event) is kind
        sent = msgspec.json.encode(happened.event)
        assert msgspec.json.encode(msgspec.json.decode(sent, type=kind)) == sent
        assert not UNSAID[domain] & set(msgspec.json.decode(sent))
        seen.add(happened.stream)
    assert {"clickstream": {"clicks", "consents"}, "iot": {"readings", "status", "equipment"}}[domain] <= seen


def test_what_agents_say_is_what_the_contract_reads() -> None:
    world, dispatcher = World(RidesProfile(seed=7, drivers=40, rings=2)), NearestDispatcher()
    streams = load("ridesharing").streams
    seen = set()
    for _ in range(900):
        now = world.now_ms + 2_000
        for happened in world.advance(now):
            dispatcher.observe(happened.event)
            kind = streams[happened.stream].event_type
            sent = msgspec.json.encode(happened.event)
            assert msgspec.json.decode(sent, type=kind) == happened.event
            assert not UNSAID["ridesharing"] & set(msgspec.json.decode(sent))
            seen.add(happened.stream)
        for message in dispatcher.decide(now):
            world.receive(message)
    assert seen >= {"locations", "status", "requests", "answers", "progress"}
