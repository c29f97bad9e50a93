"""Settings of risks, remaining life and maintenance dates."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from millrace.runtime.settings import Duration, Section
from millrace_apps.iot_maintenance.foresight.models import LIFE_NAME, RISK_NAME


class ForesightSettings(Section):
    """Failure risk, remaining life and maintenance plans."""

    on: bool = Field(
        default=False,
        description="look ahead: tables machine_features, risks, remaining_life, maintenance_plan and "
        "maintenance; part of the checkpoint. Adds two shuffles",
    )
    every: Duration = Field(
        default=timedelta(hours=1), description="length of a step: what a machine is like is taken together"
    )
    baseline: str = Field(
        default="",
        description="JSON file of regimes and what is usual in each; unset: values are taken as they are",
    )
    registry: str = Field(
        default="",
        description="MLflow registry of the models; part of the checkpoint. Without it and foresight.exports "
        "features are told, and nothing is foreseen",
    )
    exports: str = Field(
        default="",
        description="folder of the exported models, which all workers must see under this path; default: the "
        "folder exported beside a registry in SQLite, or models/exported under storage.root",
    )
    risk: str = Field(default=RISK_NAME, description="name of the registered model of risks")
    life: str = Field(default=LIFE_NAME, description="name of the registered model of remaining life")
    coverage: float = Field(
        default=0.9, gt=0, lt=1, description="how often the truth is to be in the interval of remaining life"
    )
    rate: float = Field(
        default=0.05, ge=0, le=1, description="how fast intervals follow what comes true; 0: they do not"
    )
    judged_by: Literal["forecast", "interval"] = Field(
        default="forecast",
        description="what alarm rules take for remaining_life, and plans for the date: the forecast (plans: "
        "what costs the least by its distribution), or the begin of the interval that follows what came "
        "true. interval: part of the checkpoint, and a shuffle more",
    )
    cost_early: float = Field(default=1.0, gt=0, description="cost of an hour of life that is given away")
    cost_late: float = Field(
        default=9.0, gt=0, description="cost of an hour that a machine runs on after it would have failed"
    )

    @field_validator("every")
    @classmethod
    def _takes_time(cls, value: timedelta) -> timedelta:
        if value <= timedelta(0):
            raise ValueError("a step takes time, e.g. 1h")
        return value

    def folder(self, models: Path) -> str | None:
        """Return the folder from which workers have their models; ``None``: there are none.

        Args:
            models: Folder of the app's models.
        """
        if self.exports:
            return str(Path(self.exports).expanduser().absolute())
        if not self.registry:
            return None
        from millrace.models.places import default_exports

        return str(default_exports(self.registry, models))
