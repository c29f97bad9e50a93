"""The commands over an app's models, for an app that is as small as an app that learns can be."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pytest
import typer
from deltalake import write_deltalake
from typer.testing import CliRunner, Result

from millrace.errors import MillraceError, UserError
from millrace.models import beginning
from millrace.models.candidate import Candidate
from millrace.models.commands import (
    Root,
    TableVersion,
    To,
    Uri,
    Which,
    command_line,
    entered,
    opened,
    time_of,
)
from millrace.models.exports import Exports
from millrace.models.gates import Gate, Judged
from millrace.models.learner import AppModel, Learner, Question
from millrace.models.loading import FORESTS
from millrace.models.manifest import BrokenModel
from millrace.models.serving import ExportedModels, ModelHolder
from millrace.models.tables import CannotTrain, TrainingTables, matrix, parse_versions
from tests.unit.millrace.models.cases import INPUTS
from tests.unit.millrace.models.shelf import Shelf


def train(
    root: Root = None,
    registry: Uri = None,
    exports: To = None,
    model: Which = None,
    table_version: TableVersion = None,
    noise: Annotated[float, typer.Option(help="Labels that are wrong.")] = 0.0,
) -> None:
    """Train a model of wear."""
    from sklearn.ensemble import ExtraTreesClassifier

    shop = opened(lambda: LEARNER, model, root, registry, exports)
    tables = shop.tables(parse_versions(table_version or ()))
    rows = tables.read("readings", (*INPUTS, "worn", "at_ms"))
    tables.check_wanted()
    worn = rows["worn"].to_numpy() ^ (np.random.default_rng(0).random(len(rows)) < noise)
    forest = ExtraTreesClassifier(8, random_state=0).fit(matrix(rows, INPUTS), worn)
    candidate = Candidate(
        estimator=forest, inputs=INPUTS, since_ms=0, until_ms=int(rows["at_ms"].max()), rows=len(rows),
        metrics={"held_back": 0.5}, tables=tables.versions, facts={"noise": noise},
    )  # fmt: skip
    version, champion = shop.enter(candidate)
    typer.echo(entered(shop, version, champion))


def judged(question: Question) -> Judged:
    rows = question.workshop.tables().read("later", (*INPUTS, "worn", "day"))
    x = matrix(rows, INPUTS)
    scores = [m.score_many(x) for m in (question.champion, question.challenger)]
    return Judged(rows["worn"].to_numpy(), scores[0], scores[1], rows["day"].to_numpy(), "readings", "days")


LEARNER = Learner(
    app="plant",
    models={"readings": AppModel("wear", FORESTS, ("readings",), "Whether a part is worn."),
            "oil": AppModel("plant-oil", FORESTS)},
    judged=judged,
    gates=(Gate(metric="average_precision", min_groups=5),),
    columns={"noise": "noise"},
    limits=("Parts of a new kind are not known.",),
)  # fmt: skip
app = command_line("plant", lambda: LEARNER, {"train": train})


def readings(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({name: rng.normal(size=rows) for name in INPUTS})
    table["worn"] = table["load"] + 0.3 * table["heat"] > 0.8
    table["at_ms"], table["day"] = np.arange(rows), np.arange(rows) // 40
    return table


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("millrace.models.registry.Registry", Shelf)
    for version in range(2):  # the second has more
        write_deltalake(str(tmp_path / "tables" / "readings"), readings(150, version), mode="append")
    write_deltalake(str(tmp_path / "tables" / "later"), readings(800, 7))
    return tmp_path


def run(root: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, *arguments, "--root", str(root)])


def done(root: Path, command: str, *arguments: str) -> str:
    result = run(root, command, *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def in_force(root: Path, alias: str = "champion") -> str | None:
    """The version that a worker takes that begins now."""
    holder = ModelHolder(ExportedModels(Exports(str(root / "models" / "exported"), "wear")), alias)
    holder.poll()
    return holder.status().version


def shelf(root: Path) -> Shelf:
    return opened(lambda: LEARNER, None, root, None, None).registry  # type: ignore[return-value]


def test_the_life_of_a_model(root: Path) -> None:
    assert "no models yet: millrace models plant train" in done(root, "list")
    assert "no champion yet: millrace models plant promote 1" in done(root, "train", "--noise", "0.3")
    assert in_force(root) is None
    assert "version 1 decides now\n" in done(root, "promote", "1")
    assert in_force(root) == "1"
    assert "beside the champion now" in done(root, "train")
    assert (in_force(root), in_force(root, "challenger")) == ("1", "2")
    assert done(root, "compare").startswith("passed: average_precision 0.")
    said = done(root, "promote", "2")
    assert "on 800 readings of 20 days; gain between +" in said
    assert "version 2 decides now, 1 did before" in said
    assert [in_force(root, alias) for alias in ("champion", "challenger", "previous")] == ["2", None, "1"]
    assert "version 1 decides again, version 2 does no more" in done(root, "rollback")
    assert [in_force(root, alias) for alias in ("champion", "previous")] == ["1", "2"]
    listed = done(root, "list")
    assert "readings@1" in listed
    assert "workers find" not in listed


def test_what_is_no_better_beyond_doubt_stays_out_and_the_gate_says_by_how_much(root: Path) -> None:
    done(root, "train")
    done(root, "promote", "1")
    done(root, "train", "--noise", "0.4")
    refused = run(root, "promote", "2")
    assert isinstance(refused.exception, MillraceError)
    assert "version 2 is not better than 1 beyond doubt: average_precision" in str(refused.exception)
    assert "short of more than +0.0000: nothing changed" in str(refused.exception)
    assert refused.output.startswith("FAILED: average_precision")
    assert run(root, "compare").exit_code == 1
    assert (in_force(root), shelf(root).aliases) == ("1", {"champion": 1, "challenger": 2})
    lenient = root / "gates.yaml"
    lenient.write_text("- {metric: average_precision, margin: -1.0}\n")
    assert run(root, "compare", "--gates", str(lenient)).exit_code == 0
    assert "version 2 decides now" in done(root, "promote", "2", "--gates", str(lenient))


def test_the_champion_is_not_promoted_again(root: Path) -> None:
    done(root, "train")
    done(root, "promote", "1")
    for command in (("promote", "1"), ("compare", "1"), ("compare",), ("rollback",), ("promote", "9")):
        refused = run(root, *command)
        assert isinstance(refused.exception, UserError), command
    assert in_force(root) == "1"


def test_a_model_that_workers_would_refuse_does_not_get_the_alias(root: Path) -> None:
    import skops.io

    done(root, "train")
    good = shelf(root).files(1)[1]
    shelf(root).spoil(1, good[:-1])
    assert isinstance(run(root, "promote", "1").exception, BrokenModel)
    assert (in_force(root), shelf(root).aliases) == (None, {})
    shelf(root).spoil(1, good)
    done(root, "promote", "1")
    done(root, "train")
    shelf(root).spoil(2, skops.io.dumps({"not": "a model"}))
    refused = run(root, "promote", "2")
    assert isinstance(refused.exception, BrokenModel)
    assert (in_force(root), shelf(root).aliases["champion"]) == ("1", 1)
    shelf(root).set_alias("champion", 2)  # by another tool
    assert isinstance(run(root, "export").exception, BrokenModel)
    assert in_force(root) == "1"
    assert "champion: the registry says 2, workers find 1" in done(root, "list")


def test_the_list_says_which_version_workers_cannot_use(root: Path) -> None:
    """Nobody read what workers count as failures: a file that was changed behind the commands' backs."""
    done(root, "train")
    done(root, "promote", "1")
    assert "workers cannot use" not in done(root, "list")
    done(root, "train")
    shelf(root).set_alias("champion", 2)
    done(root, "export")
    assert "workers cannot use" not in done(root, "list")
    exports = opened(lambda: LEARNER, None, root, None, None).exports
    found = exports.find("champion")
    assert found is not None
    before = exports.find("previous")
    file = exports.path / found.manifest.file
    file.write_bytes(b"x" * found.manifest.size)
    now = "no model" if before is None or before.manifest.file == found.manifest.file else "version 1"
    said = done(root, "list")
    assert f"champion: workers cannot use version 2 and begin with {now}: BrokenModel" in said


def test_a_champion_that_nobody_can_read_is_replaced_without_a_comparison(root: Path) -> None:
    done(root, "train")
    done(root, "promote", "1")
    done(root, "train", "--noise", "0.4")
    shelf(root).spoil(1, b"gone")
    said = done(root, "promote", "2")
    assert "the champion is of no use: version 1 cannot be read" in said
    assert in_force(root) == "2"


def test_an_alias_that_another_tool_has_moved_is_exported(root: Path) -> None:
    done(root, "train")
    done(root, "promote", "1")
    done(root, "train")
    shelf(root).set_alias("champion", 2)
    assert in_force(root) == "1"
    assert "champion: version 2\n" in done(root, "export")
    assert in_force(root) == "2"
    assert "version 2\n" not in done(root, "export"), "it is there already"
    folder = root / "models" / "exported" / "wear"
    for file in folder.glob("*.skops"):
        file.write_bytes(file.read_bytes()[:50])
    assert in_force(root) is None
    assert "champion: version 2\n" in done(root, "export"), "what was damaged is written anew"
    assert in_force(root) == "2"


def test_a_training_set_is_of_the_versions_that_were_asked_for_and_says_which(root: Path) -> None:
    done(root, "train", "--table-version", "readings@0")
    done(root, "train")
    found = [json.loads(done(root, "show", version)) for version in ("1", "2")]
    assert [f["tables"] for f in found] == [{"readings": 0}, {"readings": 1}]
    assert [shelf(root).entry(n).about["rows"] for n in (1, 2)] == ["150", "300"]
    for wrong, told in (("readings@7", "no version 7"), ("oil@0", "nothing is read from a table oil")):
        refused = run(root, "train", "--table-version", wrong)
        assert isinstance(refused.exception, CannotTrain)
        assert told in str(refused.exception)


def test_a_table_is_read_in_one_version_however_often_it_is_read(root: Path) -> None:
    tables = TrainingTables(root / "tables")
    first = tables.read("readings", ("load",))
    write_deltalake(str(root / "tables" / "readings"), readings(10, 3), mode="append")
    assert len(tables.read("readings", ("heat",))) == len(first) == 300
    assert tables.versions == {"readings": 1}


@pytest.mark.parametrize(("columns", "told"), [(("load", "smell"), "no column smell"), (("load",), None)])
def test_a_column_that_is_not_there_is_named(root: Path, columns: tuple[str, ...], told: str | None) -> None:
    tables = TrainingTables(root / "tables")
    if told is None:
        assert len(tables.read("readings", columns)) == 300
        with pytest.raises(CannotTrain, match="no table"):
            tables.read("nothing", columns)
    else:
        with pytest.raises(CannotTrain, match=told):
            tables.read("readings", columns)


def test_a_card_says_what_a_version_is(root: Path) -> None:
    done(root, "train", "--noise", "0.3")
    done(root, "promote", "1")
    done(root, "train")
    done(root, "promote", "2")
    assert "Promoted without a champion to compare it with." in done(root, "card", "1")
    out = root / "cards" / "2.md"
    assert str(out) in done(root, "card", "2", "--out", str(out))
    card = out.read_text()
    for told in (
        "# plant: wear, version 2", "Whether a part is worn.", "| aliases | champion |", "| rows | 300 |",
        "| tables | readings@1 |", "Features (3): `load`, `heat`, `age`.", "| held back | 0.5000 |",
        "- `average_precision`, higher is better: by more than 0, at 95% confidence;",
        "Promoted on:", "- average_precision 0.", "- Parts of a new kind are not known.", "| noise | 0.0 |",
    ):  # fmt: skip
        assert told in card, told
    assert shelf(root).versions[1][0].sha256 in card


def test_a_model_of_an_app_is_named_by_the_app_or_by_the_registry(root: Path) -> None:
    assert LEARNER.model(None).name == LEARNER.model("readings").name == LEARNER.model("wear").name == "wear"
    assert LEARNER.model("plant-oil") is LEARNER.model("oil")
    assert LEARNER.model("oil:press-7").name == "press-7"
    assert LEARNER.model("oil:press-7").tables == LEARNER.model("oil").tables
    refused = run(root, "list", "--model", "water")
    assert str(refused.exception) == "plant has no model water; there are: readings, oil"


def test_older_names_are_the_same_commands() -> None:
    older = command_line("plant", lambda: LEARNER, {"train": train}, {"list": "models", "promote": "promote"})
    assert sorted(c.name or "" for c in older.registered_commands) == ["models", "promote"]


def test_a_time_is_read_as_it_was_written() -> None:
    assert time_of(None, 41) == 42
    assert time_of("1970-01-02T00:00", 0) == time_of("1970-01-02T01:00+01:00", 0) == 86_400_000
    with pytest.raises(UserError, match="write a time as"):
        time_of("yesterday", 0)


@pytest.mark.parametrize("text", ["readings", "@3", "readings@", "readings@x", "readings@-1"])
def test_a_version_of_a_table_is_written_in_one_way(text: str) -> None:
    with pytest.raises(UserError, match="write TABLE@VERSION"):
        parse_versions([text])


class Ran:
    """Stands for a process that exports."""

    def __init__(self, code: int, error: str = "") -> None:
        self.commands: list[list[str]] = []
        self._code, self._error = code, error

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        return subprocess.CompletedProcess(command, self._code, "", self._error)


def test_a_job_has_a_registry_of_before_exported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, folder = tmp_path / "mlflow.db", tmp_path / "exported"
    uri, ran = f"sqlite:///{database}", Ran(0)
    monkeypatch.setattr(beginning.subprocess, "run", ran)
    assert not beginning.export_first("plant", "readings", "wear", uri, folder), "there is no registry"
    database.touch()
    assert beginning.export_first("plant", "readings", "wear", uri, folder)
    (command,) = ran.commands
    assert command[2:] == ["millrace", "models", "plant", "export", "--model", "readings:wear",
                           "--registry", uri, "--exports", str(folder)]  # fmt: skip
    (folder / "wear").mkdir(parents=True)
    assert not beginning.export_first("plant", "readings", "wear", uri, folder)
    assert len(ran.commands) == 1


def test_a_job_goes_on_where_nothing_can_be_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beginning.subprocess, "run", Ran(1, "noise\nmillrace: no answer\n"))
    assert not beginning.export_first("plant", "readings", "wear", "http://nowhere", tmp_path)
    assert "could not be exported: millrace: no answer" in caplog.text

    def slow(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(beginning.subprocess, "run", slow)
    assert not beginning.export_first("plant", "readings", "wear", "http://nowhere", tmp_path)
