"""Models that a stream asks: trained, registered, compared, exported, exchanged while they score.

A model is a file of checked types and its manifest. Commands keep versions in a registry and export the one
that decides; workers read the exports and nothing else, and never import the registry. Names are imported on
use, so that commands which train nothing start quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millrace.models.calibration import Calibration
    from millrace.models.exports import CHALLENGER, CHAMPION, PREVIOUS, Exports
    from millrace.models.loading import LoadedModel, Reader
    from millrace.models.manifest import BrokenModel, Manifest
    from millrace.models.serving import ServedModel, Status

__all__ = [
    "CHALLENGER",
    "CHAMPION",
    "PREVIOUS",
    "BrokenModel",
    "Calibration",
    "Exports",
    "LoadedModel",
    "Manifest",
    "Reader",
    "ServedModel",
    "Status",
]

_WHERE: Final = {
    "Calibration": "calibration",
    "CHALLENGER": "exports",
    "CHAMPION": "exports",
    "PREVIOUS": "exports",
    "Exports": "exports",
    "LoadedModel": "loading",
    "Reader": "loading",
    "BrokenModel": "manifest",
    "Manifest": "manifest",
    "ServedModel": "serving",
    "Status": "serving",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"millrace.models.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'millrace.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
