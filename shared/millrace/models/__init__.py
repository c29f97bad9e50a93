"""Models that a stream asks: trained, registered, compared, exported, exchanged while they score.

A model is a file of checked types and its manifest. Commands keep versions in a registry and export the one
that decides; workers read the exports and nothing else, and never import the registry.
"""

from millrace.models.calibration import Calibration
from millrace.models.exports import Exports
from millrace.models.loading import LoadedModel, Reader
from millrace.models.manifest import BrokenModel, Manifest
from millrace.models.serving import CHALLENGER, CHAMPION, ServedModel, Status

__all__ = [
    "CHALLENGER",
    "CHAMPION",
    "BrokenModel",
    "Calibration",
    "Exports",
    "LoadedModel",
    "Manifest",
    "Reader",
    "ServedModel",
    "Status",
]
