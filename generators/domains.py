"""Which domains there are: found by name, imported only when one is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import entry_points
from typing import Final

from millrace.errors import UserError
from millrace_apps.generators.engine.simulated import Domain

#: Domain → ``module:attribute`` of its :class:`Domain`.
REGISTRY: Final = {
    "payments": "millrace_apps.generators.payments:DOMAIN",
    "iot": "millrace_apps.generators.iot:DOMAIN",
    "clickstream": "millrace_apps.generators.clickstream:DOMAIN",
    "ridesharing": "millrace_apps.generators.ridesharing:DOMAIN",
    "stocks": "millrace_apps.generators.small:STOCKS",
    "weblogs": "millrace_apps.generators.small:WEBLOGS",
    "orders": "millrace_apps.generators.small:ORDERS",
}


#: Entry-point group by which other packages add domains: name → ``module:attribute`` of a :class:`Domain`.
GROUP: Final = "millrace.domains"


def _targets() -> dict[str, str]:
    """Return domain → where it is; ours first, so that nobody else's takes their place."""
    added = {entry.name: entry.value for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name)}
    return added | REGISTRY


def names() -> list[str]:
    """Return the names of the domains that are installed: ours, then those of other packages.

    >>> set(REGISTRY) <= set(names())
    True
    """
    targets = _targets()
    order = [*REGISTRY, *(name for name in targets if name not in REGISTRY)]
    return [name for name in order if _is_there(targets[name])]


def _is_there(target: str) -> bool:
    try:
        return importlib.util.find_spec(target.partition(":")[0]) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def load(name: str) -> Domain:
    """Return a domain.

    Raises:
        UserError: If there is none of this name, or a package that it needs is missing.
    """
    if name not in names():
        raise UserError(f"there is no domain {name}; `millrace generate list` names them")
    target = _targets()[name]
    module, _, attribute = target.partition(":")
    try:
        domain = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise UserError(f"the domain {name} needs the package {error.name}: install it") from error
    if not isinstance(domain, Domain):
        raise UserError(f"{target}, which the entry point {name} names, is no Domain")
    return domain
