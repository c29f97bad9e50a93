"""The registry of domains: found by their entry points, imported when one is asked for."""

from __future__ import annotations

import importlib.util
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from millrace.errors import UserError
from millrace.runtime.installed import load_entry
from millrace_apps.generators.engine.simulated import Domain

#: Entry-point group by which packages add domains: name → ``module:attribute`` of a :class:`Domain`.
GROUP: Final = "millrace.domains"
#: The package of ours: nobody else's domain takes the place of one of its.
_OURS: Final = "millrace-apps"
#: Former name → today's: still taken for one version.
FORMER: Final = {"payments": "fraud"}


def _found() -> dict[str, EntryPoint]:
    """Return name → entry point; ours first."""
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (not _is_ours(e), e.name)):
        found.setdefault(entry.name, entry)
    return found


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == _OURS


def names() -> list[str]:
    """Return the names of the domains that are installed: ours, then those of other packages.

    >>> {"fraud", "handbook", "iot"} <= set(names())
    True
    """
    return [name for name, entry in _found().items() if _is_there(entry.module)]


def today_of(name: str) -> str:
    """Return today's name of a domain.

    >>> today_of("payments"), today_of("iot")
    ('fraud', 'iot')
    """
    return FORMER.get(name, name)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def load(name: str) -> Domain:
    """Return a domain, by today's name or a former one.

    Raises:
        UserError: If there is none of this name, or a package that it needs is missing.
    """
    entry = _found().get(today_of(name))
    if entry is None or not _is_there(entry.module):
        raise UserError(f"there is no domain {name}; `millrace generate list` names them")
    return load_entry(entry, "domain", Domain, "Domain")
