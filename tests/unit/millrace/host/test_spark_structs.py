"""Structs that no worker can import, made anew in another interpreter: what they take, say and refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pyspark import cloudpickle

from millrace.host import spark_structs
from millrace.host.spark_structs import SelfReference, check_struct

spark_structs.install()

#: Run where none of this is known: reads structs with texts, and writes what becomes of the texts.
_ELSEWHERE = """
import pickle, sys, msgspec
found = []
for tp, texts in pickle.load(open(sys.argv[1], "rb")):
    for text in texts:
        try:
            found.append(msgspec.json.encode(msgspec.json.decode(text, type=tp)).decode())
        except msgspec.ValidationError as error:
            found.append(str(error))
    found.append([repr(msgspec.structs.fields(tp)), tp.__module__, tp.__doc__])
open(sys.argv[2], "wb").write(msgspec.json.encode(found))
"""

_TYPES: list[tuple[Any, list[Any]]] = [
    (int, [3, "x"]),
    (float, [1.5, None]),
    (str, ["a", 7]),
    (str | None, [None, "b", 1]),
    (list[int], [[1, 2], [], ["x"]]),
    (dict[str, float], [{"a": 1.0}, {"a": "b"}]),
    (Annotated[int, msgspec.Meta(ge=0, lt=10)], [0, 9, 10, -1]),
    (Annotated[str, msgspec.Meta(pattern="^a+$", max_length=3)], ["aa", "aaaa", "b"]),
    (Literal["in", "out"], ["in", "off"]),
    (tuple[int, ...], [[1, 2], "x"]),
]


def in_main(name: str, fields: list[Any], **how: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct(name, fields, module="__main__", **how)


def random_struct(random: Random, depth: int = 0) -> tuple[type[msgspec.Struct], list[bytes]]:
    """Return a struct and texts, some of which it takes."""
    fields: list[Any] = []
    values: dict[str, list[Any]] = {}
    upper = random.random() < 0.3
    for number in range(random.randint(1, 5)):
        name = f"field_{number}"
        if depth < 2 and random.random() < 0.2:
            tp, texts = random_struct(random, depth + 1)
            taken: list[Any] = [msgspec.json.decode(text) for text in texts[:3]]
        else:
            tp, taken = random.choice(_TYPES)
        default: Any = random.choice([(), (None,), (msgspec.field(default_factory=list),), (5,)])
        fields.append((name, tp, *default))
        values[name.upper() if upper else name] = taken
    how: dict[str, Any] = {"kw_only": True}
    if upper:
        how["rename"] = "upper"
    if random.random() < 0.3:
        how |= {"tag": f"t{random.randint(0, 9)}", "tag_field": "kind"}
    for option in ("frozen", "forbid_unknown_fields", "omit_defaults"):
        how[option] = random.random() < 0.3
    texts = []
    for _ in range(6):
        chosen = {name: random.choice(taken) for name, taken in values.items() if random.random() < 0.8}
        if "tag" in how and random.random() < 0.8:
            chosen["kind"] = how["tag"]
        if random.random() < 0.1:
            chosen["more"] = 1
        texts.append(msgspec.json.encode(chosen))
    return in_main(f"S{depth}", fields, **how), texts


def what_becomes(tp: Any, texts: list[bytes]) -> list[Any]:
    found: list[Any] = []
    for text in texts:
        try:
            found.append(msgspec.json.encode(msgspec.json.decode(text, type=tp)).decode())
        except msgspec.ValidationError as error:
            found.append(str(error))
    return [*found, [repr(msgspec.structs.fields(tp)), tp.__module__, tp.__doc__]]


def elsewhere(cases: list[Any], folder: Path) -> Any:
    (folder / "in").write_bytes(cloudpickle.dumps(cases))
    command = [sys.executable, "-c", _ELSEWHERE, str(folder / "in"), str(folder / "out")]
    subprocess.run(command, check=True, timeout=120)
    return msgspec.json.decode((folder / "out").read_bytes())


def test_in_another_interpreter_random_structs_do_what_they_did_here(tmp_path: Path) -> None:
    random = Random(5)
    cases = [random_struct(random) for _ in range(500)]
    expected = [line for tp, texts in cases for line in what_becomes(tp, texts)]
    took = [line for line in expected if isinstance(line, str) and line.startswith("{")]
    assert 500 < len(took) < 2_900  # both are tried: what is taken, and what is not
    assert elsewhere(cases, tmp_path) == expected


def test_methods_bases_and_documents_come_along(tmp_path: Path) -> None:
    source = '''
import msgspec

class Base(msgspec.Struct, tag_field="kind", tag="base"):
    """What all have."""
    user: str

class Payment(Base, tag="payment"):
    """Money."""
    amount: float = 0.0
    others: list[Base] = []

    @property
    def cents(self) -> int:
        return round(self.amount * 100)

    def more(self) -> "Payment":
        return Payment(self.user, self.amount + 1)
'''
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "cell", "exec", dont_inherit=True), names)  # noqa: S102 - as a notebook does
    payment = names["Payment"]("ann", 1.5, [names["Base"]("bob")])
    (tmp_path / "in").write_bytes(cloudpickle.dumps(payment))
    code = (
        "import pickle, sys; p = pickle.load(open(sys.argv[1], 'rb')); Base = type(p).__mro__[1];"
        "print(p, p.cents, p.more().cents, type(p).__doc__, isinstance(p.others[0], Base), sep='|')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "in")]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert said.strip().split("|") == [
        "Payment(user='ann', amount=1.5, others=[Base(user='bob')])", "150", "250", "Money.", "True"
    ]  # fmt: skip


def test_what_fields_are_made_of_comes_along_though_it_was_read_here_before(tmp_path: Path) -> None:
    source = """
import dataclasses, enum, typing
import msgspec

class Colour(enum.Enum):
    RED = "r"

@dataclasses.dataclass
class Line:
    item: int
    tags: list[str] = dataclasses.field(default_factory=list)

class Place(typing.NamedTuple):
    x: int
    y: int = 2

class Said(typing.TypedDict, total=False):
    why: str

Cents = typing.NewType("Cents", int)

class Sale(msgspec.Struct):
    colour: Colour
    lines: list[Line]
    place: Place
    said: Said
    cents: Cents = Cents(5)
"""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "cell", "exec", dont_inherit=True), names)  # noqa: S102 - as a notebook does
    sale, text = names["Sale"], b'{"colour":"r","lines":[{"item":1}],"place":[1],"said":{"why":"so"}}'
    cases = [(sale, [text, text.replace(b'"so"', b"7"), text.replace(b'"r"', b'"x"')])]
    told = what_becomes(*cases[0])[:3]
    assert told[0] == (
        '{"colour":"r","lines":[{"item":1,"tags":[]}],"place":[1,2],"said":{"why":"so"},"cents":5}'
    )
    assert elsewhere(cases, tmp_path)[:3] == told
    assert what_becomes(*cases[0])[:3] == told


def test_here_it_stays_the_class_it_is() -> None:
    payment = in_main("Payment", [("amount", float)])
    other = in_main("Payment", [("amount", float)])
    again, too = cloudpickle.loads(cloudpickle.dumps([payment, other]))
    assert again is payment
    assert too is other


def test_what_can_be_imported_goes_by_its_name() -> None:
    from millrace.dead_letters import DeadLetter

    assert len(cloudpickle.dumps(DeadLetter)) < 100
    assert cloudpickle.loads(cloudpickle.dumps(DeadLetter)) is DeadLetter


def test_a_struct_that_leads_to_itself_is_refused_in_a_line() -> None:
    names: dict[str, Any] = {"__name__": "__main__", "msgspec": msgspec}
    exec(  # noqa: S102 - as a notebook does
        "class Tree(msgspec.Struct):\n    leaves: 'list[Tree]'\n"
        "class A(msgspec.Struct):\n    b: 'B | None'\n"
        "class B(msgspec.Struct):\n    a: 'A | None'\n",
        names,
    )
    sys_main = sys.modules["__main__"].__dict__
    added = {name: names[name] for name in ("Tree", "A", "B")}
    sys_main.update(added)
    try:
        for name, field in (("Tree", "leaves"), ("A", "b")):
            with pytest.raises(SelfReference, match=rf"{name}\.{field} leads to {name} again"):
                check_struct(names[name])
            with pytest.raises(SelfReference):
                cloudpickle.dumps(names[name])
    finally:
        for name in added:
            del sys_main[name]
