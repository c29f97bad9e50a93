"""How the Python that runs here was built: without its own optimisations all of it is slower.

A loop of additions took 1.2 to 1.3 s with a CPython 3.11 whose build was left at its defaults, as version
managers do, and .8 s with a distribution's, which is built with profiles of what programs do.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from typing import Any

_OPTION = "--enable-optimizations"


def is_optimised(told: Mapping[str, Any] | None = None) -> bool:
    """Return whether Python was built with its optimisations, or does not say that it was not.

    Args:
        told: What the build says of itself; default that of this Python
            (:func:`sysconfig.get_config_vars`).

    Example:
        >>> is_optimised({"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_USE_FLAG": "-fprofile-use"})
        False
        >>> is_optimised({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'", "PGO_PROF_USE_FLAG": "-f"})
        True
        >>> is_optimised({"CONFIG_ARGS": "'--with-system-expat'", "PGO_PROF_USE_FLAG": ""})  # of Debian
        True
        >>> is_optimised({})  # of Windows
        True
    """
    told = sysconfig.get_config_vars() if told is None else told
    arguments = told.get("CONFIG_ARGS")
    # Distributions that ask for the profile by other means leave no trace of it but an empty flag.
    return not arguments or _OPTION in arguments or not told.get("PGO_PROF_USE_FLAG")
