"""Models that look ahead, in a real MLflow registry: trained, promoted, compared, rolled back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner, Result

from millrace.errors import MillraceError
from millrace_apps.iot_maintenance.evaluation.stream import run, settings_for
from millrace_apps.iot_maintenance.foresight.model_cli import app
from millrace_apps.iot_maintenance.foresight.models import Forecaster
from tests.unit.apps.iot_maintenance.foresight_cases import HOUR, START, wearing

pytestmark = pytest.mark.matrix  # MLflow takes ten seconds to be imported, and twenty to make its tables


def at(hour: int) -> str:
    """A time as ``--as-of`` has it."""
    return f"{datetime.fromtimestamp((START + hour * HOUR) / 1000, UTC):%Y-%m-%dT%H:%M}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of forty machines, half of which begin when the others have failed."""
    made = tmp_path_factory.mktemp("models")
    later = [
        sent._replace(
            event=msgspec.structs.replace(
                sent.event,
                machine_id=f"n{sent.event.machine_id}",
                event_time_ms=sent.event.event_time_ms + 100 * HOUR,
            )
        )
        for sent in wearing(20, seed=2)
    ]
    events = wearing(20) + later
    options = ["monitor.judge=false", "monitor.sensor_least=30d", "foresight.on=true"]
    rows = run(events, settings_for(options), ["machine_features", "maintenance"], engine="memory").rows
    features = pd.DataFrame(rows["machine_features"])
    schema = pa.schema(
        [
            ("machine_id", pa.string()), ("kind", pa.string()), ("event_time_ms", pa.int64()),
            ("begun_ms", pa.int64()), ("features", pa.map_(pa.string(), pa.float64())),
        ]
    )  # fmt: skip
    records = [{**row, "features": list(row["features"].items())} for row in features.to_dict("records")]
    write_deltalake(str(made / "tables" / "machine_features"), pa.Table.from_pylist(records, schema))
    write_deltalake(str(made / "tables" / "maintenance"), pd.DataFrame(rows["maintenance"]))
    return made


def do(root: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, *arguments, "--root", str(root)])


@pytest.mark.parametrize("model", ["risk", "life"])
def test_the_life_of_a_model(root: Path, model: str) -> None:
    which = ("--model", model)
    assert "no models yet" in do(root, "list", *which).output
    learn = ("--models", "1", "--label-delay", "1h", "--ceiling", "60h")
    first = do(root, "train", *which, "--as-of", at(60), *learn)
    assert first.exit_code == 0, first.output
    assert "there is no champion yet" in first.output
    assert "version 1 decides now" in do(root, "promote", "1", *which).output
    second = do(root, "train", *which, "--as-of", at(100), *learn, "--seed", "1")
    assert second.exit_code == 0, second.output
    assert "scores beside the champion" in second.output

    asked = Forecaster(str(root / "models" / "exported"))
    fresh = {"age_h": 1.0, "heat.mean_10": 50.0, "heat.mean_80": 50.0, "noise.mean_10": 5.0}
    if model == "risk":
        risks = asked.risks(fresh)
        assert risks is not None
        assert (risks.version, set(risks.of), risks.horizon_h) == ("1", {"pump", "seal"}, 24.0)
    else:
        told = asked.life(fresh)
        assert told is not None
        assert (told.version, told.ceiling, len(told.spread)) == ("1", 60.0, 17)
        assert told.hours > 20

    compared = do(root, "compare", *which, "--label-delay", "1h")
    assert compared.exit_code in (0, 1), compared.output
    assert "skill" in compared.output
    assert ("passed" in compared.output) == (compared.exit_code == 0)
    promoted = do(root, "promote", "2", *which, "--label-delay", "1h")
    assert (promoted.exit_code == 0) == (compared.exit_code == 0)
    if promoted.exit_code:
        assert isinstance(promoted.exception, MillraceError)
    else:
        assert "version 1 decides again" in do(root, "rollback", *which).output
    assert "champion" in do(root, "list", *which).output
    card = do(root, "card", "1", *which).output
    assert "machine_features" in card
    assert "not foreseen" in card


def test_a_model_of_nothing_is_refused_in_a_line(root: Path) -> None:
    for model in ("risk", "life"):
        refused = do(root, "train", "--model", model, "--as-of", at(3), "--label-delay", "1h")
        assert isinstance(refused.exception, MillraceError), refused.output
