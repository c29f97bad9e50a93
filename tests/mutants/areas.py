"""All mutants, by the part of the code that they change."""

from __future__ import annotations

from typing import Final

from tests.mutants import (
    app_clickstream,
    app_clickstream_recommend,
    app_fraud,
    app_fraud_page,
    app_iot,
    app_ridesharing,
    app_ridesharing_page,
    chaos,
    checks,
    connectors,
    core_conversion,
    core_experiments,
    core_joins,
    core_models,
    core_operators,
    core_parts,
    core_patterns,
    core_state,
    core_station,
    core_time,
    core_topology,
    core_windows,
    generators,
    operations,
    privacy,
    roster,
    security,
    serving,
)
from tests.mutants.mutant import Mutant

#: Area → its mutants.
AREAS: Final[dict[str, tuple[Mutant, ...]]] = {
    "core_conversion": core_conversion.MUTANTS,
    "core_state": core_state.MUTANTS,
    "core_station": core_station.MUTANTS,
    "core_time": core_time.MUTANTS,
    "core_topology": core_topology.MUTANTS,
    "core_windows": core_windows.MUTANTS,
    "core_experiments": core_experiments.MUTANTS,
    "core_joins": core_joins.MUTANTS,
    "core_models": core_models.MUTANTS,
    "core_parts": core_parts.MUTANTS,
    "core_patterns": core_patterns.MUTANTS,
    "core_operators": core_operators.MUTANTS,
    "chaos": chaos.MUTANTS,
    "checks": checks.MUTANTS,
    "connectors": connectors.MUTANTS,
    "app_clickstream": app_clickstream.MUTANTS,
    "app_clickstream_recommend": app_clickstream_recommend.MUTANTS,
    "app_fraud": app_fraud.MUTANTS,
    "app_fraud_page": app_fraud_page.MUTANTS,
    "app_iot": app_iot.MUTANTS,
    "app_ridesharing": app_ridesharing.MUTANTS,
    "app_ridesharing_page": app_ridesharing_page.MUTANTS,
    "generators": generators.MUTANTS,
    "operations": operations.MUTANTS,
    "privacy": privacy.MUTANTS,
    "roster": roster.MUTANTS,
    "security": security.MUTANTS,
    "serving": serving.MUTANTS,
}
