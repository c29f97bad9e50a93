"""Three failed logins and then one that succeeds, all within a minute: a pattern of events.

The attempts are put in order of event time; a pattern says what comes after what, how often, and in what
time. What began and was not completed in time is told too, in the output `timed_out`.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import minutes
from millrace.patterns import begin, detect, skip_past_last
from millrace.playback import Playback, at, play
from millrace.topology import Input, read

TEACHES = "patterns (CEP), conditions, partial matches that time out"


class Login(msgspec.Struct):
    """An attempt to log in."""

    user: str
    at: int
    ok: bool


class Guessed(msgspec.Struct):
    """Somebody may have guessed a password."""

    user: str
    first: int
    in_at: int


guessed = (
    begin("failed").where(lambda login: not login.ok).times(3).consecutive()
    .next("in").where(lambda login: login.ok)
    .within(minutes(1))
)  # fmt: skip
guesses = detect(
    Login,
    guessed,
    after_match=skip_past_last(),
    select=lambda match: Guessed(match.user, match.start_ms, match.end_ms),
    output=Guessed,
    key="user",
)
logins = read(Input("logins", key="user", event_time="at")).process(guesses)

LOGINS = [
    [Login("ann", at("10:00:00"), False), Login("ann", at("10:00:03"), True)],  # a slip of the finger
    [Login("eve", at("10:00:10"), False), Login("eve", at("10:00:12"), False)],
    [Login("eve", at("10:00:15"), True), Login("eve", at("10:00:14"), False)],  # out of order
    [Login("bob", at("10:00:40"), False), Login("ann", at("10:01:50"), True)],
    [
        Login("bob", at("10:01:51"), False),
        Login("bob", at("10:01:52"), False),
        Login("bob", at("10:01:53"), True),
    ],
]


def main(engine: str = "memory") -> Playback:
    """Play the attempts."""
    return play(logins, LOGINS, engine, out_of_orderness="5 seconds").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
