"""Mutants of the ridesharing app: commitments, offers, searches, owners, its audits, its demo's checks."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/ridesharing"
_TESTS: Final = "tests/unit/apps/ridesharing"
_DISPATCHER: Final = f"{_TESTS}/test_dispatcher.py"
_ONE_MOMENT: Final = (
    "test_of_one_moment_answers_go_first_and_what_operators_want_of_drivers_before_what_of_requests"
)
_INCOMPLETE: Final = (
    f"{_TESTS}/test_gate.py::test_what_is_incomplete_or_for_nowhere_is_a_dead_letter_with_a_reason"
)
_CONFLICTS: Final = (
    f"{_TESTS}/test_gate.py::test_what_says_something_else_under_a_known_id_is_told_from_a_repeat"
)
_AUDIT: Final = f"{_TESTS}/test_audit.py::test_the_audit_finds_what_is_wrong_in_the_tables"
_AUDITOR: Final = f"{_TESTS}/test_audit.py::test_what_violates_an_invariant_raises_its_alarm"
#: The checks of the demo, the audit of the tables among them, over app and agents in memory.
_CHECKS: Final = f"{_TESTS}/test_demo.py::test_every_check_of_the_demo_holds"
_CHECKS_FAIL: Final = f"{_TESTS}/test_demo.py::test_a_check_of_the_demo_fails_where_its_feature_is_broken"

_ETA: Final = "tests/unit/apps/ridesharing/test_eta.py"
_DEMAND: Final = "tests/unit/apps/ridesharing/test_demand.py"
_DEBS: Final = "tests/unit/apps/ridesharing/test_debs.py"

MUTANTS: Final = (
    Mutant(
        "ridesharing: a driver with a ride is offered another",
        f"{_APP}/window.py",
        "        if not car.request_id\n        and car.online\n",
        "        if car.online\n",
        "nothing is dispatched twice",
        (_CHECKS, f"{_TESTS}/test_window.py"),
    ),
    Mutant(
        "ridesharing: a position of any age will do",
        f"{_APP}/window.py",
        "        and now - car.seen_ms <= ttl_ms\n        and book",
        "        and book",
        "offers go to drivers who are heard of",
        (f"{_TESTS}/test_window.py",),
    ),
    Mutant(
        "ridesharing: a blocked driver is offered rides",
        f"{_APP}/window.py",
        "        and book.blocked.get(driver_id, 0) <= now\n    ]",
        "    ]",
        "operators can block a driver",
        (f"{_DISPATCHER}::test_a_blocked_driver_gets_no_offer_until_the_block_is_over",),
    ),
    Mutant(
        "ridesharing: an offer never expires",
        f"{_APP}/dispatcher.py",
        '            desk.again(ride, "offer expired", "expired", "expired", anew=False)\n',
        "            pass\n",
        "an offer is answered or expires",
        (
            f"{_DISPATCHER}::test_an_offer_expires_by_its_timer_and_the_next_driver_is_asked",
            _CHECKS,
        ),
    ),
    Mutant(
        "ridesharing: an answer to an offer that is over counts",
        f"{_APP}/dispatcher.py",
        '        and event.offer_id == f"{event.request_id}-o{ride.attempt}"\n',
        "",
        "only the open offer can be answered",
        (_DISPATCHER,),
    ),
    Mutant(
        "ridesharing: who refused is asked again",
        f"{_APP}/desk.py",
        "        ride.excluded[driver_id] = self.now + self.config.cool_down_ms\n",
        "",
        "who refused a ride is left out",
        (f"{_DISPATCHER}::test_a_reject_frees_the_driver_for_others_but_not_for_the_same_request_again",),
    ),
    Mutant(
        "ridesharing: a driver is freed twice",
        f"{_APP}/desk.py",
        '        self._note(f"d:{driver_id}", "close", ride)\n        ride.answered',
        '        self._note(f"d:{driver_id}", "close", ride)\n'
        '        self._note(f"d:{driver_id}", "close", ride)\n        ride.answered',
        "a commitment ends once",
        (_CHECKS,),
    ),
    Mutant(
        "ridesharing: a search never ends",
        f"{_APP}/desk.py",
        "        self.book.remind(max(give_up, self.now), Due.GIVE_UP, ride.request_id, ride.revision)\n",
        "",
        "a request does not wait longer than the patience it is given",
        (f"{_DISPATCHER}::test_nobody_found_in_time", _CHECKS),
    ),
    Mutant(
        "ridesharing: attempts end without a word",
        f"{_APP}/desk.py",
        "        self._attempt(ride, attempt, self.now)\n        driver_id = ride.driver_id\n",
        "        driver_id = ride.driver_id\n",
        "every attempt is closed in its table",
        (_CHECKS,),
    ),
    Mutant(
        "ridesharing: a trip that is finished goes on",
        f"{_APP}/dispatcher.py",
        '        desk.move(ride, "completed", "trip finished")\n',
        "",
        "trips are completed",
        (_CHECKS,),
    ),
    Mutant(
        "ridesharing: a late signal counts from its own time",
        f"{_APP}/dispatcher.py",
        "            self._handle(event, ctx, max(ctx.event_time, ctx.watermark))\n",
        "            self._handle(event, ctx, ctx.event_time)\n",
        "time does not run backwards",
        (f"{_DISPATCHER}::test_what_comes_behind_the_watermark_counts_from_when_it_comes",),
    ),
    Mutant(
        "ridesharing: a request that is repeated is asked again",
        f"{_APP}/gate.py",
        "        elif self._has_come(event, ctx):\n",
        "        elif self._has_come(event, ctx) and False:\n",
        "repeats change nothing",
        (f"{_TESTS}/test_gate.py::test_repeats_go_to_the_dead_letters_and_not_to_a_region",),
    ),
    Mutant(
        "ridesharing: another signal under a known id is a repeat",
        f"{_APP}/gate.py",
        "        if known is True or known == content:\n",
        "        if known:\n",
        "conflicts are told from repeats",
        (_CONFLICTS,),
    ),
    Mutant(
        "ridesharing: a driver in two places at once is a repeat",
        f"{_APP}/gate.py",
        "                if track.here in (None, (lat, lon)):\n",
        "                if track.here or not track.here:\n",
        "conflicts are told from repeats",
        (_CONFLICTS,),
    ),
    Mutant(
        "ridesharing: a pick-up may be in the year 9999",
        f"{_APP}/gate.py",
        "        elif ahead := too_far_ahead(event):\n",
        "        elif (ahead := too_far_ahead(event)) and not ahead:\n",
        "no timer waits for thousands of years",
        (f"{_TESTS}/test_gate.py::test_a_time_that_would_be_waited_for_for_years_is_refused",),
    ),
    Mutant(
        "ridesharing: a zone beyond 64 bits raises",
        "apps/ridesharing/regions.py",
        "        except OverflowError:  # it does not fit 64 bits\n",
        "        except ArithmeticError if zone == '' else KeyError:\n",
        "what is no zone is refused",
        (f"{_TESTS}/test_gate.py::test_a_zone_that_is_none_is_refused",),
    ),
    Mutant(
        "ridesharing: any number is an attempt's",
        f"{_APP}/dispatcher.py",
        "    bit = 1 << int(number) if number in _NUMBERS else 0\n",
        "    bit = 1 << int(number) if number.isdigit() and len(number) < 5 else 0\n",
        "an answer's bits fit the state",
        (f"{_DISPATCHER}::test_an_answer_to_an_offer_of_any_number_is_kept",),
    ),
    Mutant(
        "ridesharing: a handover changes no owner",
        f"{_APP}/gate.py",
        "            track.owner = event.region\n",
        "            track.owner = track.owner\n",
        "a driver has one owner",
        (f"{_TESTS}/test_gate.py::test_a_driver_stays_with_its_region_until_it_is_handed_over",),
    ),
    Mutant(
        "ridesharing: of one moment positions go first",
        f"{_APP}/dispatcher.py",
        "    inputs: ClassVar = {name: INPUTS[name] for name in sorted(INPUTS)}\n",
        "    inputs: ClassVar = dict(INPUTS)\n",
        "what happens in one moment has one order, that of before",
        (f"{_TESTS}/test_earlier.py", f"{_DISPATCHER}::{_ONE_MOMENT}"),
    ),
    Mutant(
        "ridesharing: positions may have any key",
        f"{_APP}/gate.py",
        "        if event.driver_id != ctx.key:\n",
        "        if not event.driver_id:\n",
        "a driver's positions have the driver as their key",
        (_INCOMPLETE,),
    ),
    Mutant(
        "ridesharing: a request may be booked for any time",
        f"{_APP}/gate.py",
        "        elif ahead := too_far_ahead(event):\n",
        "        elif ahead := too_far_ahead(event)[1:]:\n",
        "nothing is waited for in a far future",
        (_INCOMPLETE,),
    ),
    Mutant(
        "ridesharing: a key may be of any length",
        f"{_APP}/gate.py",
        "        elif len(ctx.key) > MAX_KEY:\n",
        "        elif len(ctx.key) > 1_000 * MAX_KEY:\n",
        "keys are bounded",
        (_INCOMPLETE,),
    ),
    Mutant(
        "ridesharing: a request may say nothing of its zone",
        f"{_APP}/events.py",
        "    zone: Identifier\n    pickup_lat",
        '    zone: Text = ""\n    pickup_lat',
        "what a stream must say, its type requires",
        (f"{_TESTS}/test_gate.py::test_what_an_event_must_say_it_must_say_and_the_error_names_it",),
    ),
    Mutant(
        "ridesharing: what waited comes by another input",
        f"{_APP}/earlier.py",
        "enumerate(sorted(INPUTS))",
        "enumerate(INPUTS)",
        "what waits in a checkpoint of before goes on",
        (f"{_TESTS}/test_earlier.py",),
    ),
    Mutant(
        "ridesharing: handovers that waited are lost",
        f"{_APP}/earlier.py",
        "        fields = _UNSAID | fields\n",
        "        pass\n",
        "what waits in a checkpoint of before goes on",
        (f"{_TESTS}/test_earlier.py",),
    ),
    Mutant(
        "ridesharing: an assignment by hand has any number",
        f"{_APP}/operations.py",
        "    if ride.attempt >= LAST_ATTEMPT:\n",
        "    if ride.attempt > LAST_ATTEMPT:\n",
        "attempts are bits of a number of 64",
        (f"{_DISPATCHER}::test_an_operator_can_assign_only_so_often",),
    ),
    # -- its audits
    Mutant(
        "ridesharing's auditor: a second commitment is no alarm",
        f"{_APP}/auditor.py",
        "            if account.open:\n                self._alarm(",
        "            if account.open == commitment:\n                self._alarm(",
        "the auditor sees two commitments of a driver",
        (_AUDITOR,),
    ),
    Mutant(
        "ridesharing's auditor: an offer may stay open",
        f"{_APP}/auditor.py",
        "                ctx.timers.at(event.deadline_ms + 1, _OFFER)\n",
        "                pass\n",
        "the auditor sees offers without an end",
        (f"{_TESTS}/test_audit.py::test_the_auditor_reads_the_journal_of_a_replay",),
    ),
    Mutant(
        "ridesharing's auditor: any step may follow any other",
        f"{_APP}/auditor.py",
        "        if not may_follow(event.before, event.state):\n",
        "        if not event.before and not may_follow(event.before, event.state):\n",
        "the auditor holds to the table of states",
        (_AUDITOR,),
    ),
    Mutant(
        "ridesharing's audit: commitments may overlap",
        f"{_APP}/audit.py",
        'ordered[same & (ordered["offered_ms"] < latest)]',
        'ordered[same & (ordered["offered_ms"] < latest) & ~same]',
        "the audit sees two commitments of a driver",
        (_AUDIT,),
    ),
    Mutant(
        "ridesharing's audit: a step may say that it follows another than it does",
        f"{_APP}/audit.py",
        '    found.add(3, ordered[before != ordered["before"]], "does not follow the state before")\n',
        "",
        "the audit sees steps that are missing",
        (_AUDIT,),
    ),
    Mutant(
        "ridesharing's audit: any step may follow any other",
        f"{_APP}/audit.py",
        '    found.add(3, ordered[forbidden], "not in the table of states")\n',
        "",
        "the audit holds to the table of states",
        (_AUDIT,),
    ),
    Mutant(
        "ridesharing's audit: time may run backwards",
        f"{_APP}/audit.py",
        '    found.add(3, ordered[back], "time runs backwards")\n',
        "",
        "the audit sees time that runs backwards",
        (_AUDIT,),
    ),
    Mutant(
        "ridesharing's audit: any wait will do",
        f"{_APP}/audit.py",
        "waits[stayed > patience_ms]",
        "waits[stayed > 1_000_000 * patience_ms]",
        "the audit sees searches that take too long",
        (_AUDIT,),
    ),
    Mutant(
        "ridesharing's audit: an offer may stand twice",
        f"{_APP}/audit.py",
        '    found.add(8, offers[offers.duplicated("offer_id")], "an offer twice")\n',
        "",
        "the audit sees doubled offers",
        (_AUDIT,),
    ),
    # -- the checks of the demo
    Mutant(
        "ridesharing's checks: trips that nobody finished may be completed",
        f"{_APP}/demo.py",
        "            served <= completed <= ended.keys(),\n",
        "            served <= completed,\n",
        "the demo sees trips that nobody made",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "ridesharing's checks: alarms of the auditor are not counted",
        f"{_APP}/demo.py",
        "    wrong = audited.count + alarms\n",
        "    wrong = audited.count\n",
        "the demo sees the auditor's alarms",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "ridesharing's checks: the end of a search is never written",
        f"{_APP}/desk.py",
        '        self.say(\n            "trips",\n',
        '        ends = before == "processing" and state in TERMINAL\n'
        '        (self.say if not ends else lambda *_: None)(\n            "trips",\n',
        "every request ends, and in its table",
        (_CHECKS,),
    ),
    # -- DEBS 2015
    Mutant(
        "debs: a trip counts for a moment longer than the window",
        f"{_APP}/debs/routes.py",
        "while gone < end and times[gone] <= until:",
        "while gone < end and times[gone] < until:",
        "rankings are of (t - 30 min, t]",
        (_DEBS,),
    ),
    Mutant(
        "debs: a route that falls stays where it is",
        f"{_APP}/debs/routes.py",
        "looks = looks or (count, trip) >= bound",
        "looks = looks or (count, trip) > bound",
        "the last of the ranking may fall, too",
        (_DEBS,),
    ),
    Mutant(
        "debs: a taxi waits where it was before as well",
        f"{_APP}/debs/areas.py",
        "            del waits[bisect_left(waits, before)]\n",
        "",
        "a taxi is empty in one area at most",
        (_DEBS,),
    ),
    Mutant(
        "debs: of an even number of fares the larger is the median",
        f"{_APP}/debs/areas.py",
        "twice = fares[half] + fares[~half]",
        "twice = 2 * fares[half]",
        "medians",
        (_DEBS,),
    ),
    Mutant(
        "debs: what is told is not remembered over a restart",
        f"{_APP}/debs/areas.py",
        "kept.first, kept.taxis, kept.told = self.first, self.taxis, self.told",
        "kept.first, kept.taxis, kept.told = self.first, self.taxis, []",
        "rankings are told when they change, and then only",
        (_DEBS,),
    ),
    # -- arrival times
    Mutant(
        "eta: what is recent fades twice",
        f"{_APP}/eta/features.py",
        "return Sum(self.total * share, self.weight * share, now_ms)",
        "return Sum(self.total * share, self.weight * share, self.at_ms)",
        "sums of late",
        (_ETA,),
    ),
    Mutant(
        "eta: a leg learns its own table before it is compared with it",
        f"{_APP}/eta/features.py",
        "    rest = value - told.table\n",
        "    rest = value - changed[told.keys[1]].mean(0.0, 5.0)\n",
        "how much slower than the table said",
        (_ETA,),
    ),
    Mutant(
        "eta: intervals follow the other side",
        f"{_APP}/eta/interval.py",
        "((self.low, below), (self.high, above))",
        "((self.low, above), (self.high, below))",
        "intervals that hold",
        (_ETA,),
    ),
    Mutant(
        "eta: trips that had not ended are learned from",
        f"{_APP}/eta/report.py",
        "one.at_ms + took[one.leg_id] * 1_000 <= until_ms",
        "one.at_ms <= until_ms",
        "learned by train-until",
        (_ETA,),
    ),
    # -- demand foreseen
    Mutant(
        "demand: what a quarter of last week had stays beside this week's",
        f"{_APP}/demand/process.py",
        "cell.counts[place] = asked.pop(name, 0)",
        "cell.counts[place] += asked.pop(name, 0)",
        "counts of the week that has passed",
        (_DEMAND,),
    ),
    Mutant(
        "demand: a quarter ends when the next request comes, not by its time",
        f"{_APP}/demand/process.py",
        "        ctx.timers.at((quarter + 1) * QUARTER_MS, _CLOSE)\n\n    def on_timer",
        "\n    def on_timer",
        "foreseen as the quarter before ends",
        (_DEMAND,),
    ),
    Mutant(
        "demand: the quarter that begins is part of what is usual",
        f"{_APP}/demand/process.py",
        "past[:, -known:].mean(axis=1)",
        "past[:, :known].mean(axis=1)",
        "of the first day what was there so far",
        (_DEMAND,),
    ),
    Mutant(
        "demand: a silent city is foreseen for ever",
        f"{_APP}/demand/process.py",
        "if clock.silent < WEEK:",
        "if clock.silent >= 0:",
        "a region is forgotten after a week",
        (_DEMAND,),
    ),
)
