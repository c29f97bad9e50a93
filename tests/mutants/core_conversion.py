"""Mutants of conversion: what becomes of entries, timers and contracts of an earlier version."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_ENTRIES: Final = "shared/millrace/state/conversion.py"
_CONTRACT: Final = "shared/millrace/checkpoints/conversion.py"
_PLANS: Final = "shared/millrace/runtime/plans.py"
_TESTS: Final = "tests/unit/millrace/checkpoints/test_conversion.py"
_EXTENDING: Final = "tests/unit/millrace/checkpoints/test_extending.py"
_STAGES: Final = "tests/unit/millrace/runtime/test_plans.py"

MUTANTS: Final = (
    Mutant(
        "conversion: a process that stays may take another output when others come",
        _CONTRACT,
        'name: output if output.partition(".")[0] in found else f"{before}.{output}"',
        'name: ""',
        "what stays is what it was",
        (_EXTENDING,),
    ),
    Mutant(
        "conversion: a process that stays may be another when others come",
        _CONTRACT,
        "            *contract_differences(was, is_now),\n",
        "",
        "what stays is what it was",
        (_EXTENDING,),
    ),
    Mutant(
        "conversion: of a station that gets a process nobody knows that it keeps broadcast state",
        _CONTRACT,
        '        made[STATION] = {**contract[STATION], "broadcast": broadcast}\n',
        "        made[STATION] = contract[STATION]\n",
        "a process that begins is as a new one would be",
        (_EXTENDING,),
    ),
    Mutant(
        "conversion: timers keep the names of before",
        _ENTRIES,
        "                timer.name = renamed.get(timer.name, timer.name)\n",
        "                pass\n",
        "timers go by the names of now",
        (_TESTS,),
    ),
    Mutant(
        "conversion: what expires lives for ever afterwards",
        _ENTRIES,
        "value = (expiries.get(name, NEVER), value)",
        "value = (NEVER, value)",
        "lives end when they would have",
        (_TESTS,),
    ),
    Mutant(
        "conversion: a state that the process does not have is left out in silence",
        _ENTRIES,
        "        if left:\n",
        "        if False and left:\n",
        "nothing of an entry is lost",
        (_TESTS,),
    ),
    Mutant(
        "conversion: what the next start refuses is done nonetheless",
        _CONTRACT,
        "    if differences:\n",
        "    if False and differences:\n",
        "what a checkpoint is to become is known before",
        (_TESTS,),
    ),
    Mutant(
        "plans: a checkpoint of fraud gets the stages of a new one",
        _PLANS,
        "    return app.settle(settings, plan, None if root is None else kept_links(root))\n",
        "    return app.settle(settings, plan, None)\n",
        "a checkpoint keeps its stages",
        (_STAGES,),
    ),
)
