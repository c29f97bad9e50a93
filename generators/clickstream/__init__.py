"""The web shop: visitors and people, sessions, carts, purchases, campaigns, consent, bots."""

from generators.clickstream.catalogue import Catalogue
from generators.clickstream.events import (
    STREAMS,
    Click,
    Consent,
    Customer,
    Erasure,
    ItemChange,
    OrderLine,
    Refund,
)
from generators.clickstream.offers import responds
from generators.clickstream.orders import RATES
from generators.clickstream.profile import ClickstreamProfile
from generators.clickstream.simulation import simulate
from generators.clickstream.truths import SCENARIOS
from generators.engine.simulated import Domain

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
    "Click",
    "ClickstreamProfile",
    "Consent",
    "Customer",
    "Erasure",
    "ItemChange",
    "OrderLine",
    "Refund",
    "responds",
    "simulate",
]
