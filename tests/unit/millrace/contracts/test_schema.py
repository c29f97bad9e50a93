"""From classes to JSON Schema, Spark's DDL and files."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import msgspec
import pytest
from msgspec import Meta
from pyspark.sql.types import StructType
from typer.testing import CliRunner

import millrace.contracts
import millrace.dead_letters
from millrace.cli.contracts import app as command
from millrace.contracts import (
    Contract,
    ContractError,
    ContractName,
    Mode,
    SchemaError,
    check,
    contracts_of,
    dumps,
    folder_of,
    generate,
    json_schema,
    meaning,
    spark_ddl,
    stored,
)
from millrace.contracts.compatibility import breaks
from millrace.host.spark_types import struct_type
from millrace.runtime.apps import load_app
from millrace_apps.fraud.contracts.control_events import ResetThreshold, SetThreshold
from millrace_apps.fraud.contracts.events import Alert, Decision, Transaction
from millrace_apps.generators.fraud import FraudProfile
from tests.payments import transactions_of
from tests.unit.apps.fraud.cases import DAY, HOUR, driver, send, transaction
from tests.unit.millrace.contracts.cases import ORDERS, Order

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (millrace.contracts, millrace.dead_letters)
    for module in pkgutil.iter_modules(package.__path__)
]


class V1(msgspec.Struct):
    """A reading."""

    sensor: str
    value: float


class V2(msgspec.Struct):
    """A reading."""

    sensor: str
    value: float
    unit: str = "C"


class V3(msgspec.Struct):
    """A reading."""

    sensor: str
    unit: str


class Tree(msgspec.Struct):
    children: list[Tree]


def contracts(**types: type) -> list[Contract]:
    return [Contract("demo", ContractName("reading", int(v[1:])), tp) for v, tp in types.items()]


def test_a_schema_is_one_and_takes_what_the_class_takes() -> None:
    schema = json_schema(Order)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for event in ORDERS:
        validator.validate(json.loads(msgspec.json.encode(event)))
    value = json.loads(msgspec.json.encode(ORDERS[0]))
    for name, wrong in {
        "total": 0,
        "state": "gone",
        "order_id": "",
        "grade": 3,
        "parts": [{"sku": "a", "count": 0}],
    }.items():
        assert not validator.is_valid({**value, name: wrong}), name


def test_descriptions_come_from_the_docstring_in_plain_text() -> None:
    schema = json_schema(Order, identity="urn:x")
    assert list(schema)[:2] == ["$schema", "$id"]
    assert schema["title"] == "Order"
    assert schema["description"] == "An order as the shop sends it. More about it, with code and a Else."
    assert schema["properties"]["total"]["description"] == "What it costs, in units of the currency."
    assert schema["properties"]["state"]["description"] == "Where it stands (as the shop says)."
    assert schema["$defs"]["Part"]["properties"]["sku"]["description"] == "Which article."
    assert "description" not in schema["properties"]["urgent"]


def test_the_text_is_stable_and_keeps_the_order_of_the_fields() -> None:
    assert dumps(json_schema(Order)) == dumps(json_schema(Order))
    assert list(json_schema(Order)["properties"]) == [f.name for f in msgspec.structs.fields(Order)]
    assert dumps(json_schema(Order)).endswith("}\n")


def test_meaning_leaves_wording_and_order_aside_and_nothing_else() -> None:
    schema = json_schema(Order)
    reworded = {**schema, "title": "x", "description": "y", "required": schema["required"][::-1]}
    assert meaning(reworded) == meaning(schema)
    assert meaning({**schema, "required": schema["required"][1:]}) != meaning(schema)
    named = {"type": "object", "properties": {"title": {"type": "string"}, "default": {"type": "string"}}}
    assert list(meaning(named)["properties"]) == ["title", "default"]


def test_a_type_that_contains_itself_and_one_without_schema_are_refused() -> None:
    with pytest.raises(SchemaError, match="Tree contains itself"):
        meaning(json_schema(Tree))
    with pytest.raises(SchemaError, match="has no JSON Schema"):
        json_schema(type("Odd", (), {"__annotations__": {}}))


@pytest.mark.parametrize("tp", [Transaction, Decision, Alert, Order], ids=lambda tp: tp.__name__)
def test_ddl_has_the_columns_of_the_spark_schema_of_the_class(tp: Any) -> None:
    wanted = struct_type(tp)
    text = spark_ddl(json_schema(tp))
    assert f"struct<{text}>".replace("`", "").replace(" ", "").lower() == named(wanted).lower()


def named(schema: StructType) -> str:
    """Return a schema as DDL writes it: a space behind a column's name, none behind a field's colon."""
    columns = ",".join(f"{f.name}{f.dataType.simpleString()}" for f in schema.fields)
    return f"struct<{columns}>"


def test_ddl_of_a_union_has_the_columns_of_all_its_members() -> None:
    assert (
        spark_ddl(json_schema(SetThreshold | ResetThreshold))
        == "`kind` STRING, `name` STRING, `value` DOUBLE, `by` STRING, `at_ms` BIGINT, `reason` STRING"
    )


def test_ddl_quotes_names() -> None:
    odd = {"type": "object", "properties": {"a`b c": {"type": "integer"}}}
    assert spark_ddl(odd) == "`a``b c` BIGINT"


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({}, "x has no Spark type"),
        ({"type": ["string", "integer"]}, "x may be STRING or BIGINT"),
        ({"type": "array"}, r"x\[\] has no Spark type"),
        ({"type": "null"}, "x may be null only"),
    ],
)
def test_ddl_refuses_what_has_no_column(field: dict[str, Any], why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        spark_ddl({"type": "object", "properties": {"x": field}})


@pytest.mark.parametrize(
    "text", ["transaction", "transaction.v0", "Transaction.v1", "a.v1.schema", "../a.v1", "a.v01"]
)
def test_a_contract_is_named_with_its_version(text: str) -> None:
    with pytest.raises(ContractError, match=r"written like transaction\.v1"):
        ContractName.parse(text)


def test_versions_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    generate(contracts(v10=V2, v9=V1), tmp_path)
    assert [str(name) for name in stored(tmp_path)] == ["reading.v9", "reading.v10"]


def test_generate_writes_once_and_keeps_the_wording_of_a_file(tmp_path: Path) -> None:
    assert [done for _, done in generate(contracts(v1=V1), tmp_path)] == ["written"]
    file = tmp_path / "reading.v1.schema.json"
    file.write_text(file.read_text().replace("A reading.", "A reading of a sensor."))
    assert [done for _, done in generate(contracts(v1=V1, v2=V2), tmp_path)] == ["unchanged", "written"]
    assert "of a sensor" in file.read_text()
    assert check(contracts(v1=V1, v2=V2), tmp_path) == []
    assert [done for _, done in generate(contracts(v1=V1), tmp_path, replace=True)] == ["replaced"]


def test_a_class_that_changed_within_its_version_is_found_and_not_written(tmp_path: Path) -> None:
    generate(contracts(v1=V1), tmp_path)
    before = (tmp_path / "reading.v1.schema.json").read_bytes()
    (finding,) = check(contracts(v1=V2), tmp_path)
    assert "unit is new" in finding.problem
    assert "make it reading.v2" in finding.problem
    with pytest.raises(ContractError, match="nothing was written"):
        generate(contracts(v1=V3, v2=V2), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["reading.v1.schema.json"]
    assert (tmp_path / "reading.v1.schema.json").read_bytes() == before


class V2Narrow(msgspec.Struct):
    """A reading."""

    sensor: Annotated[str, Meta(max_length=64)]
    value: Annotated[float, Meta(ge=0, le=100)]
    unit: str = "C"


class V2NarrowAndOther(V2Narrow):
    value: str  # type: ignore[assignment]


def test_narrower_bounds_are_said_and_nothing_else_goes_with_them(tmp_path: Path) -> None:
    generate(contracts(v1=V1, v2=V2Narrow), tmp_path)
    said = {"reading.v2": "readings are on a scale"}
    assert len(check(contracts(v1=V1, v2=V2Narrow), tmp_path)) == 3
    assert check(contracts(v1=V1, v2=V2Narrow), tmp_path, narrowed=said) == []
    generate(contracts(v2=V2NarrowAndOther), tmp_path, replace=True)
    (finding,) = check(contracts(v1=V1, v2=V2NarrowAndOther), tmp_path, narrowed=said)
    assert "value: v1 writes number, v2 reads string" in finding.problem
    generate(contracts(v2=V2), tmp_path, replace=True)
    (finding,) = check(contracts(v1=V1, v2=V2), tmp_path, narrowed=said)
    assert "said to be narrower than the version before it, and is not" in finding.problem
    assert check(contracts(v1=V1), tmp_path / "none", narrowed=said)[0].problem.startswith("it is not in git")


class Tagged(msgspec.Struct):
    tags: dict[str, int]


class TaggedNarrow(msgspec.Struct):
    tags: dict[Annotated[str, Meta(max_length=5)], int]


def test_bounds_of_the_names_in_a_map_are_compared() -> None:
    wide, narrow = json_schema(Tagged), json_schema(TaggedNarrow)
    assert breaks(narrow, wide) == []
    (found,) = breaks(wide, narrow)
    assert (found.where, "maxLength 5" in found.why) == ("tags.*", True)


class V1OtherDefault(msgspec.Struct):
    """A reading."""

    sensor: str
    value: float
    unit: str = "F"


class V2Moved(msgspec.Struct):
    """A reading."""

    value: float
    sensor: str


def test_another_default_is_another_contract(tmp_path: Path) -> None:
    generate(contracts(v1=V2), tmp_path)
    (finding,) = check(contracts(v1=V1OtherDefault), tmp_path)
    assert "the default of unit was C and is F" in finding.problem


def test_a_moved_field_is_found_where_protobuf_is_used(tmp_path: Path) -> None:
    generate(contracts(v1=V1, v2=V2Moved), tmp_path)
    assert check(contracts(v1=V1, v2=V2Moved), tmp_path, Mode.full) == []
    found = check(contracts(v1=V1, v2=V2Moved), tmp_path, numbered=True)
    assert [f.problem for f in found] == [
        "not Protobuf compatible: sensor was field 1 and is 2",
        "not Protobuf compatible: value was field 2 and is 1",
    ]


def test_what_the_fraud_app_puts_out_keeps_its_contracts() -> None:
    target = driver()
    for generated in transactions_of(FraudProfile(seed=5, events=500, cards=20)):
        send(target, msgspec.json.decode(generated.value, type=Transaction))
    # Ordinary purchases, and then one of another order.
    for number in range(30):
        send(target, transaction(DAY + number * HOUR, 20 + number % 3))
    send(target, transaction(3 * DAY, 9_000))
    for output, name in (("main", "decision.v2"), ("alerts", "alert.v2")):
        validator = jsonschema.Draft202012Validator(load_schema("fraud", name))
        found = [json.loads(msgspec.json.encode(value)) for value in target.values(output)]
        assert found
        for value in found[::5]:
            validator.validate(value)


def load_schema(app: str, name: str) -> dict[str, Any]:
    return stored(folder_of(app))[ContractName.parse(name)]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_run_as_they_stand(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_check_names_what_is_missing_on_either_side(tmp_path: Path) -> None:
    assert ["it is not in git" in f.problem for f in check(contracts(v1=V1), tmp_path)] == [True]
    generate(contracts(v1=V1, v2=V2), tmp_path)
    (finding,) = check(contracts(v1=V1), tmp_path)
    assert str(finding).startswith("reading.v2: the newest class is reading.v1")
    assert len(check([], tmp_path)) == 2
    # An old version whose class is gone is still judged, and nothing is wrong with it.
    assert check(contracts(v2=V2), tmp_path) == []


def test_an_incompatible_version_is_found_before_it_is_in_git(tmp_path: Path) -> None:
    generate(contracts(v1=V1), tmp_path)
    problems = [f.problem for f in check(contracts(v1=V1, v2=V3), tmp_path)]
    assert any("v1 does not have it, v2 requires it" in p for p in problems)
    assert any("not in git" in p for p in problems)


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "is no JSON"), ('{"type": 3}', "is no JSON Schema"), ("true", "is no JSON Schema of events")],
)
def test_a_file_that_is_no_schema_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "reading.v1.schema.json").write_text(text)
    with pytest.raises(ContractError, match=why):
        stored(tmp_path)


def test_the_contracts_of_all_apps_are_in_git_and_compatible() -> None:
    result = CliRunner().invoke(command, ["check"])
    assert result.exit_code == 0, result.output
    assert "ok  fraud: " in result.output
    assert [str(c.name) for c in contracts_of(load_app("fraud"))] == [
        "alert.v2",
        "authorisation.v1",
        "control.v4",
        "correction.v1",
        "decision.v2",
        "erasure.v1",
        "label.v1",
        "transaction.v2",
    ]


def test_the_command_ends_with_1_on_findings_and_shows_every_form(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert run(command, ["check", "fraud", "--folder", str(tmp_path)]).exit_code == 1
    assert run(command, ["generate", "fraud", "--folder", str(tmp_path)]).exit_code == 0
    assert run(command, ["check", "fraud", "--folder", str(tmp_path)]).exit_code == 0
    assert "transaction.v2" in run(command, ["show", "fraud"]).output
    assert "`amount` DOUBLE" in run(command, ["show", "fraud", "transaction.v2", "--as", "ddl"]).output
    assert (
        "optional double amount = 6;"
        in run(command, ["show", "fraud", "transaction.v2", "--as", "proto"]).output
    )
    assert (
        json.loads(run(command, ["show", "fraud", "transaction.v2", "--as", "avro"]).output)["name"]
        == "Transaction"
    )
    assert isinstance(run(command, ["show", "fraud", "transaction.v7"]).exception, ContractError)
