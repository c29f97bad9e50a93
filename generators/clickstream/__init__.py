"""The web shop: visitors and people, sessions, carts, purchases, campaigns, consent, bots."""

from millrace_apps.generators.clickstream.catalogue import Catalogue
from millrace_apps.generators.clickstream.offers import responds
from millrace_apps.generators.clickstream.orders import RATES
from millrace_apps.generators.clickstream.profile import ClickstreamProfile
from millrace_apps.generators.clickstream.simulation import simulate
from millrace_apps.generators.clickstream.streams import STREAMS
from millrace_apps.generators.clickstream.truths import SCENARIOS
from millrace_apps.generators.engine.simulated import Domain

DOMAIN = Domain(
    name="clickstream",
    description="a web shop: sessions, carts, checkouts, purchases, logins, campaigns, consent, bots",
    streams=STREAMS,
    profile=ClickstreamProfile,
    simulate=simulate,
    scenarios=SCENARIOS,
)

__all__ = [
    "DOMAIN",
    "RATES",
    "Catalogue",
    "ClickstreamProfile",
    "responds",
    "simulate",
]
