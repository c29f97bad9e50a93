"""Mutants of streams whose events are Avro, Protobuf, or JSON with a schema."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PACKING: Final = "shared/millrace/host/packing.py"
_INTAKE: Final = "shared/millrace/host/intake.py"
_FORMATS: Final = "shared/millrace/contracts/formats.py"
_TESTS: Final = "tests/unit/millrace/host/test_formats.py"
_ORACLE: Final = (
    f"{_TESTS}::test_what_confluents_serialisers_write_is_read_as_the_same_events_in_json_and_nothing_else"
)
_INPUTS: Final = f"{_TESTS}::test_of_several_inputs_each_has_its_own_format_and_control_events_are_json"

MUTANTS: Final = (
    Mutant(
        "formats: what cannot be read goes on as it came",
        _FORMATS,
        "                return unreadable(error, data)\n",
        "                return data\n",
        "plain JSON is no event of such a topic, and a dead letter says why",
        (_ORACLE,),
    ),
    Mutant(
        "formats: a number that JSON has not becomes null",
        _FORMATS,
        "                return event_json(decode(data))\n",
        "                return msgspec.json.encode(decode(data))\n",
        "events come through as they were",
        (f"{_TESTS}::test_a_number_that_json_has_not_comes_through",),
    ),
    Mutant(
        "formats: control events are decoded",
        _PACKING,
        "    asis = set() if control is None else {",
        "    asis = set() if True else {",
        "control events are JSON",
        (_INPUTS,),
    ),
    Mutant(
        "formats: an event of an unknown version is decoded",
        _PACKING,
        ".to_pylist()) if unknown}\n",
        ".to_pylist()) if unknown is None}\n",
        "an unknown version is not read",
        (_INPUTS,),
    ),
    Mutant(
        "formats: all inputs have the first one's format",
        _PACKING,
        "        place = 0 if inputs is None else inputs[row]\n",
        "        place = 0\n",
        "each input has its own format",
        (_INPUTS,),
    ),
    Mutant(
        "formats: bytes of an input that is JSON tell why",
        _INTAKE,
        "            found = why_unreadable(raw[len(mark) :]) if name in self.formatted else None\n",
        "            found = why_unreadable(raw[len(mark) :])\n",
        "bytes of inputs that are JSON tell nothing",
        (_INPUTS,),
    ),
)
