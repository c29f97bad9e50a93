"""What every generator shares: seeded simulation → faults and disorder → pace → sink, with a ledger.

A domain yields its events in event time and knows nothing of faults, rates or sinks. Each stage around it
is a function over that stream with random numbers of its own, so switching one on or off changes neither
the bytes of the events nor what the other stages do.
"""

from generators.engine.message import Episode, Fault, Generated, Labels
from generators.engine.profile import Profile
from generators.engine.randomness import substream
from generators.engine.stages import deliver

__all__ = ["Episode", "Fault", "Generated", "Labels", "Profile", "deliver", "substream"]
