"""Mutants of what is compared: checks that hold for nothing, and what demos and evaluations see."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_REPORT: Final = "shared/millrace/console/report.py"
_SHOWN: Final = (
    "tests/unit/millrace/console/test_live_view.py::TestReport"
    "::test_a_check_that_has_nothing_to_compare_does_not_hold_and_says_so"
)
_SHOP: Final = "tests/unit/apps/clickstream/test_checks.py"
_SHOP_FAILS: Final = f"{_SHOP}::test_a_check_against_the_ledger_fails_where_its_feature_is_broken"
_EVALUATIONS: Final = "tests/unit/apps/test_evaluations.py::test_a_comparison_sees_what_is_broken"
_OFFERS: Final = "apps/clickstream/evaluation/offer_checks.py"
_LEDGER: Final = "tests/unit/generators/test_ledger_check.py"

MUTANTS: Final = (
    Mutant(
        "checks: a whole demo without what is seldom holds",
        "shared/millrace/demo.py",
        "    forgiven = [name for name in empty if options.is_small and name in seldom]\n",
        "    forgiven = [name for name in empty if name in seldom]\n",
        "what is seldom may be missing from a small demo alone",
        ("tests/unit/millrace/runtime/test_demo_verdict.py",),
    ),
    Mutant(
        "checks: one that compares nothing holds",
        _REPORT,
        "        return self.ok and self.compared > 0\n",
        "        return self.ok\n",
        "a check that compares nothing does not hold",
        (_SHOWN,),
    ),
    Mutant(
        "checks: what compares nothing is shown as right",
        _REPORT,
        '    if check.is_empty:\n        return "-"\n',
        "",
        "a check that compares nothing says so",
        (_SHOWN,),
    ),
    Mutant(
        "checks: numbers that differ are equal",
        _REPORT,
        "expected == found, note, compared=compared)",
        "found >= 0, note, compared=compared)",
        "numbers are compared",
        ("tests/unit/apps/fraud/test_demo.py", _SHOP_FAILS),
    ),
    Mutant(
        "checks: what is too many is not seen",
        _REPORT,
        "    wrong = len(expected ^ found)\n",
        "    wrong = len(expected - found)\n",
        "sets are compared both ways",
        (_SHOP_FAILS,),
    ),
    Mutant(
        "checks: a ledger with nothing to compare is right",
        "generators/ledger_cli.py",
        "    if not any(one.holds for one in checks):\n",
        "    if not checks:\n",
        "a comparison of nothing fails",
        (f"{_LEDGER}::test_nothing_to_compare_is_said",),
    ),
    Mutant(
        "checks: offers need no consent",
        _OFFERS,
        "        return place > 0 and purposes <= said[place - 1][1]\n",
        "        return True\n",
        "the demo sees offers without consent",
        (_SHOP,),
    ),
    Mutant(
        "checks: offers are compared with themselves",
        _OFFERS,
        'same("offers for carts that were left", due, made,',
        'same("offers for carts that were left", made, made,',
        "the demo sees that offers are missing",
        (_SHOP_FAILS,),
    ),
    Mutant(
        "checks: caps are not looked at",
        _OFFERS,
        '        wrong += made.forbids(rules[offer["rule"]], offer["person"], offer["at_ms"])\n',
        "        wrong += 0\n",
        "the demo sees offers above their cap",
        (_SHOP_FAILS,),
    ),
    Mutant(
        "checks: arms are compared with themselves",
        _OFFERS,
        'same("arms of offers", dealt, arms)',
        'same("arms of offers", arms, arms)',
        "the demo sees arms that nobody dealt",
        (_SHOP_FAILS,),
    ),
    Mutant(
        "checks: a session twice is one for the comparison with pandas",
        "apps/clickstream/evaluation/files.py",
        "assign(time=frame.groupby(keys).cumcount())",
        "assign(time=0)",
        "the evaluation sees sessions that are there twice",
        (_EVALUATIONS,),
    ),
    Mutant(
        "checks: a row twice is one for the comparison with Snowplow",
        "apps/clickstream/evaluation/snowplow_files.py",
        "len(by_key) + again\n",
        "len(by_key)\n",
        "the evaluation sees rows that are there twice",
        (_EVALUATIONS,),
    ),
    Mutant(
        "checks: a reading enriched twice is one for the comparison with merge_asof",
        "apps/iot_maintenance/evaluation/azure.py",
        "len(contradicting) + again\n",
        "len(contradicting)\n",
        "the evaluation sees rows that are there twice",
        (_EVALUATIONS,),
    ),
    Mutant(
        "checks: a minute of a zone twice is one for the comparison with pandas",
        "apps/ridesharing/evaluation/location_report.py",
        "assign(time=frame.groupby(key).cumcount())",
        "assign(time=0)",
        "the evaluation sees rows that are there twice",
        (_EVALUATIONS,),
    ),
)
