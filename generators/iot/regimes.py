"""Regimes of machines, and the words of plants for them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

#: What a machine does; ``failed``: broken down and waiting for repair.
Regime: TypeAlias = Literal["off", "idle", "setup", "running", "overload", "maintenance", "failed"]
OFF: Final = "off"
IDLE: Final = "idle"
SETUP: Final = "setup"
RUNNING: Final = "running"
OVERLOAD: Final = "overload"
MAINTENANCE: Final = "maintenance"
FAILED: Final = "failed"

#: Words of plants for what their machines do: the regimes' own, PackML's, and those of a plant in Germany.
VOCABULARIES: Final[tuple[tuple[str, dict[Regime, str]], ...]] = (
    ("", {}),
    ("packml", {
        "off": "Off", "idle": "Idle", "setup": "Resetting", "running": "Execute", "overload": "Execute",
        "maintenance": "Maintenance", "failed": "Aborted",
    }),
    ("werk", {
        "off": "Aus", "idle": "Bereit", "setup": "Rüsten", "running": "Läuft", "overload": "Überlast",
        "maintenance": "Wartung", "failed": "Störung",
    }),
)  # fmt: skip
