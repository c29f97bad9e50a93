"""Which domains there are: found by name, imported only when one is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Final

from generators.engine.simulated import Domain
from millrace.errors import UserError

#: Domain → ``module:attribute`` of its :class:`Domain`.
REGISTRY: Final = {
    "payments": "generators.payments:DOMAIN",
    "iot": "generators.iot:DOMAIN",
    "clickstream": "generators.clickstream:DOMAIN",
    "ridesharing": "generators.ridesharing:DOMAIN",
    "stocks": "generators.small:STOCKS",
    "weblogs": "generators.small:WEBLOGS",
    "orders": "generators.small:ORDERS",
}


def names() -> list[str]:
    """Return the names of the domains that are installed.

    >>> set(names()) <= set(REGISTRY)
    True
    """
    return [name for name, target in REGISTRY.items() if importlib.util.find_spec(target.partition(":")[0])]


def load(name: str) -> Domain:
    """Return a domain.

    Raises:
        UserError: If there is none of this name, or a package that it needs is missing.
    """
    if name not in names():
        raise UserError(f"there is no domain {name}; `millrace generate list` names them")
    module, _, attribute = REGISTRY[name].partition(":")
    try:
        domain = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise UserError(f"the domain {name} needs the package {error.name}: install it") from error
    if not isinstance(domain, Domain):
        raise TypeError(f"{REGISTRY[name]} is no Domain")
    return domain
