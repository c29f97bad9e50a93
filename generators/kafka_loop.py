"""`millrace generate DOMAIN --loop`: people who react to an app over Kafka."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from millrace.errors import UserError
from millrace_apps.generators.engine.loop import AppPace, KafkaInbox, Loop, Mailbag, looped
from millrace_apps.generators.engine.pace import WallClock
from millrace_apps.generators.engine.simulated import Domain
from millrace_apps.generators.options import kafka_options
from millrace_apps.generators.timing import Timing

#: Options of the loop: name → (type, default).
OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "loop": (
        Annotated[bool, typer.Option("--loop", help="React to what an app says, over Kafka.")],
        False,
    ),
    "loop_suffix": (
        Annotated[str, typer.Option(help="What the names of the app's topics end in, e.g. .demo-1.")],
        "",
    ),
    "loop_ahead_min": (
        Annotated[
            float | None,
            typer.Option(
                metavar="MINUTES",
                help="Event time goes on no further than this beyond the app's newest message: a slow app is "
                "waited for.",
            ),
        ],
        None,
    ),
}


def close_the_loop(
    domain: Domain, loop: Loop, values: Mapping[str, Any], timing: Timing
) -> tuple[Domain, Timing]:
    """Return the domain in a loop with an app, and a timing that leaves the pace to it.

    Args:
        domain: The domain with the topics that it sends to.
        loop: Who reacts, and to what.
        values: Option → value of the command.
        timing: When it is to be sent.

    Raises:
        UserError: The options contradict a loop.
    """
    if values["to"].value != "kafka":
        raise UserError("--loop talks with an app over Kafka: leave --to out")
    if values["resume"] or values["sample"] is not None or values["dry_run"]:
        raise UserError("--loop goes without --resume, --sample and --dry-run: what the app said is not kept")
    if timing.speed is None:
        raise UserError("--loop needs a pace: give --rate a number, and --speed to be faster than life")
    pace, ahead_min = None, values["loop_ahead_min"]
    if ahead_min is not None:
        if loop.time_of is None or not ahead_min > 0:
            raise UserError("--loop-ahead-min is above 0, and not there where messages do not say their time")
        pace = AppPace(loop.time_of, int(ahead_min * 60_000))
    topics = {f"{name}{values['loop_suffix']}": kind for name, kind in loop.topics.items()}
    inbox = KafkaInbox(
        values["bootstrap"],
        topics,
        options=kafka_options(values["kafka_option"]),
        partitions=values["partitions"],
    )
    closed = looped(
        domain,
        loop.world,
        inbox,
        clock=WallClock(threading.Event()),
        speed=timing.speed,
        until_ms=timing.until_ms,
        mailbag=Mailbag(topics),
        pace=pace,
    )
    return closed, replace(timing, speed=None)
