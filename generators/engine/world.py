"""A domain with several streams, as it is sent: simulation → messages → faults → order of arrival."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice, takewhile

from millrace_apps.generators.engine.corrupt import StructCorruptor
from millrace_apps.generators.engine.disturb import Disturbances, beside, lost, silent, windows
from millrace_apps.generators.engine.encode import encoded
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.engine.profile import Profile, check
from millrace_apps.generators.engine.randomness import digest, substream
from millrace_apps.generators.engine.simulated import Domain, Simulated
from millrace_apps.generators.engine.stages import (
    Stream,
    delayed,
    disorder,
    duplicates,
    in_arrival_order,
    late,
    malformed,
)


def deliver_domain(
    domain: Domain,
    profile: Profile,
    disturbances: Disturbances | None = None,
    until_ms: int | None = None,
) -> Stream:
    """Return a domain's messages in their order of sending; equal arguments give equal bytes.

    The stages come in this order, each with random numbers of its own: wrong clocks, delay, lateness,
    loss, drifted schemas, unknown versions, repeats, broken messages, silent partitions, silence.
    An event has one fault at most: the first of these that hits it.

    Args:
        domain: The world.
        profile: Its parameters, of the domain's own type.
        disturbances: What goes wrong beside the profile's lateness, repeats and broken messages.
        until_ms: What happens from this event time on is left out, ms; None: nothing is.
    """
    wrong = disturbances or Disturbances()
    law = wrong.law
    if profile.late and law is not None:
        check(
            profile.lateness_ms > law.max_ms,
            f"lateness must be more than the delay's {law.max_ms} ms",
            profile.lateness_ms,
        )

    def numbers(purpose: str) -> random.Random:
        return substream(profile.seed, domain.name, "stage", purpose)

    simulation: Iterator[Simulated] = islice(domain.simulate(profile), profile.events)
    if until_ms is not None:
        simulation = takewhile(lambda happened: happened.event_time_ms < until_ms, simulation)
    stream = encoded(domain, simulation, wrong, profile.seed)
    if wrong == Disturbances() and not (
        profile.disorder_ms or profile.late or profile.duplicates or profile.malformed
    ):
        return stream  # in order as it is
    if law is None:
        stream = disorder(stream, profile.disorder_ms, numbers("disorder"))
    else:
        stream = delayed(stream, law, numbers("disorder"))
    if profile.late:
        stream = late(stream, profile.late, profile.lateness_ms, None, numbers("late"))
    if wrong.loss:
        stream = lost(stream, wrong.loss, numbers("loss"))
    stream = _odd_messages(domain, profile, wrong, stream)
    return in_arrival_order(_silences(domain, profile, wrong, stream))


def _odd_messages(domain: Domain, profile: Profile, wrong: Disturbances, stream: Stream) -> Stream:
    run = digest(domain.name, profile.seed, profile.start_ms)[:10]
    makers = {
        name: StructCorruptor(spec.event_type, id_field=spec.id_field, run=run)
        for name, spec in domain.streams.items()
    }

    def numbers(purpose: str) -> random.Random:
        return substream(profile.seed, domain.name, "stage", purpose)

    def drift(event: Generated, number: int, draws: random.Random) -> Generated | None:
        return makers[event.stream].drift(event, number, draws)

    def unknown(event: Generated, number: int, draws: random.Random) -> Generated:
        return makers[event.stream].unknown_version(event, number, draws)

    def corrupt(event: Generated, number: int, draws: random.Random) -> Generated:
        return makers[event.stream](event, number, draws)

    if wrong.drift:
        stream = beside(stream, wrong.drift, drift, numbers("drift"))
    if wrong.unknown_version:
        stream = beside(stream, wrong.unknown_version, unknown, numbers("unknown_version"))
    if profile.duplicates:
        stream = duplicates(stream, profile.duplicates, numbers("duplicates"))
    if profile.malformed:
        stream = malformed(stream, profile.malformed, corrupt, numbers("malformed"))
    return stream


def _silences(domain: Domain, profile: Profile, wrong: Disturbances, stream: Stream) -> Stream:
    for name, length, every, partitions in (
        ("idle", wrong.idle_ms, wrong.idle_every_ms, wrong.idle_partitions),
        ("silence", wrong.silence_ms, wrong.silence_every_ms, 1),
    ):
        if length:
            numbers = substream(profile.seed, domain.name, "stage", name)
            planned = windows(profile.start_ms, length, every, partitions, numbers)
            stream = silent(stream, name, planned, partitions)
    return stream
