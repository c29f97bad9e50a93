"""`millrace generate ridesharing --loop`: drivers and riders who answer the app over Kafka."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from generators.engine.pace import WallClock
from generators.engine.simulated import Domain
from generators.options import kafka_options
from generators.ridesharing.loop import APP_TOPICS, KafkaInbox, Mailbag, looped
from generators.timing import Timing
from millrace.errors import UserError

#: Options of the loop: name → (type, default).
OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "loop": (
        Annotated[bool, typer.Option("--loop", help="Answer an app in place of the plain dispatcher.")],
        False,
    ),
    "loop_suffix": (
        Annotated[str, typer.Option(help="What the names of the app's topics end in, e.g. .demo-1.")],
        "",
    ),
}


def close_the_loop(domain: Domain, values: Mapping[str, Any], timing: Timing) -> tuple[Domain, Timing]:
    """Return the domain dispatched by an app, and a timing that leaves the pace to it.

    Args:
        domain: The domain with the topics that it sends to.
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
    topics = {f"{name}{values['loop_suffix']}": kind for name, kind in APP_TOPICS.items()}
    inbox = KafkaInbox(
        values["bootstrap"],
        topics,
        options=kafka_options(values["kafka_option"]),
        partitions=values["partitions"],
    )
    closed = looped(
        domain,
        inbox,
        clock=WallClock(threading.Event()),
        speed=timing.speed,
        until_ms=timing.until_ms,
        mailbag=Mailbag(topics),
    )
    return closed, replace(timing, speed=None)
