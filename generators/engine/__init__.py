"""The engine of all generators: seeded simulation → faults and disorder → pace → sink, with a ledger.

A domain yields its events in event time and knows nothing of faults, rates or sinks. Each stage around it
is a function over that stream with random numbers of its own, so switching one on or off changes neither
the bytes of the events nor what the other stages do.
"""

from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.message import Fault, Generated
from millrace_apps.generators.engine.profile import Profile
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Domain, Simulated, StreamSpec, Truth
from millrace_apps.generators.engine.world import deliver_domain

__all__ = [
    "Disturbances",
    "Domain",
    "Fault",
    "Generated",
    "Profile",
    "Simulated",
    "StreamSpec",
    "Truth",
    "deliver_domain",
    "substream",
]
