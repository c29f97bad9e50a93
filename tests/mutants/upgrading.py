"""Mutants of upgrades: what fits, what two versions are compared by, where a second one writes."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_IN: Final = "shared/millrace/upgrading"
_TESTS: Final = "tests/unit/millrace/upgrading"
_DIFFERENCES, _FITTING = f"{_TESTS}/test_differences.py", f"{_TESTS}/test_fitting.py"
_TRIAL: Final = f"{_TESTS}/test_trial.py"

MUTANTS: Final = (
    Mutant(
        "trial: topics that no table has are passed over in silence",
        "shared/millrace/upgrading/trial.py",
        "if output not in topology.tables)",
        "if not output)",
        "what is not compared is told",
        ("tests/unit/millrace/upgrading/test_trial.py",),
    ),
    Mutant(
        "upgrade: what the other one wrote later counts as missing",
        f"{_IN}/differences.py",
        "        if key not in green_then:\n",
        "        if key not in green_first:\n",
        "the line between two looks",
        (_DIFFERENCES,),
    ),
    Mutant(
        "upgrade: rows of the new version only are not seen",
        f"{_IN}/differences.py",
        "    for key in blue_first.keys() | green_first.keys():\n",
        "    for key in blue_first.keys():\n",
        "rows of one only, on both sides",
        (_DIFFERENCES,),
    ),
    Mutant(
        "upgrade: what is there twice is the same",
        f"{_IN}/differences.py",
        "self.differ, self.twice_blue, self.twice_green)\n",
        "self.differ)\n",
        "a doubled row is a difference",
        (_DIFFERENCES,),
    ),
    Mutant(
        "upgrade: no number is another each time",
        f"{_IN}/differences.py",
        "    return bool(one == other) or repr(one) == repr(other)\n",
        "    return bool(one == other)\n",
        "values are compared, what is no number among them",
        (f"{_DIFFERENCES}::test_a_value_that_is_no_number_is_the_same_in_both",),
    ),
    Mutant(
        "upgrade: rows that change meanwhile are compared",
        f"{_IN}/differences.py",
        "        if not still:\n",
        "        if still is None:\n",
        "of a table with one row per key what stands still is compared",
        (_DIFFERENCES,),
    ),
    Mutant(
        "upgrade: the check writes the contract",
        f"{_IN}/fitting.py",
        "        write_contract(Path(folder), dict(kept))\n",
        "        folder = str(root)\n        write_contract(Path(folder), dict(kept))\n",
        "a check touches nothing",
        (_FITTING,),
    ),
    Mutant(
        "upgrade: another version goes on without a savepoint",
        f"{_IN}/fitting.py",
        '        return Fit("from a savepoint", changes)\n',
        '        return Fit("as it is", changes)\n',
        "what only a savepoint takes",
        (_FITTING,),
    ),
    Mutant(
        "upgrade: the new version runs in the old environment",
        f"{_IN}/started.py",
        "        rest = {name: value for name, value in self.env.items() if name not in own}\n",
        "        rest = {name: value for name, value in self.env.items() if name}\n",
        "a new version has its own code",
        (_FITTING,),
    ),
    Mutant(
        "upgrade: a second version writes to the real topics",
        "shared/millrace/runtime/apps.py",
        'writes=tuple(replace(t, name=f"{t.name}{suffix}") for t in topics.writes))\n',
        "writes=tuple(replace(t, name=t.name) for t in topics.writes))\n",
        "outputs of a second version have topics of their own",
        (_FITTING,),
    ),
    Mutant(
        "upgrade: rows that a compaction wrote anew are new",
        "shared/millrace/checkpoints/positions.py",
        '        files += [table / unquote(a["add"]["path"]) for a in actions if a["add"]["dataChange"]]\n',
        '        files += [table / unquote(a["add"]["path"]) for a in actions]\n',
        "rows since the second version began",
        (_TRIAL,),
    ),
    Mutant(
        "upgrade: a second version sends ticks",
        "shared/millrace/runtime/job.py",
        "        if self.settings.kafka.output_suffix:\n",
        "        if self.settings is None:\n",
        "only one job moves time",
        (_TRIAL,),
    ),
    Mutant(
        "upgrade: a second version is given the first one's checkpoint",
        f"{_IN}/trial.py",
        "    if Path(folder) != blue:\n",
        "    if Path(folder) == blue:\n",
        "what belongs to the query is not taken along",
        (_TRIAL,),
    ),
    Mutant(
        "upgrade: only the running version's offsets are waited for",
        f"{_IN}/trial.py",
        "                known[partition] = max(offset, known.get(partition, 0))\n",
        "                known.setdefault(partition, offset)\n",
        "both have read what either has",
        (_TRIAL,),
    ),
)
