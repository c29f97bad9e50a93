"""Where visits come from, by what touches orders came, and whose touches in a shared browser are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from millrace.host.memory_chain import MemoryChain
from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.events import Click
from millrace_apps.clickstream.contracts.messages import Link, OrderPlaced, Purchase
from millrace_apps.clickstream.processes.channels import (
    TABLE,
    Channels,
    ChannelsError,
    ChannelTable,
    built_in,
    channels_of,
    label_of,
    read_channels,
)
from millrace_apps.clickstream.processes.persons import Persons
from millrace_apps.clickstream.processes.visitor import Visitors
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.browser_state import MOST_TOUCHES, BrowserState, VisitorRules
from millrace_apps.clickstream.state.profiles import Person, Touch
from millrace_apps.clickstream.state.touches import brought_by, touches_told
from tests.unit.apps.clickstream.app_cases import (
    DAY,
    HOUR,
    MINUTE,
    START,
    click,
    consent,
    keyed,
    run_app,
    send,
)
from tests.unit.apps.clickstream.test_identity import marks_of, owner_of_all

SHOP = "https://www.shop.example"
NO_IDS = "click_ids: {}\nreturns: [y.com]\n"
NO_WORDS = NO_IDS + "mediums: {}\n"


def landed(
    url: str = f"{SHOP}/x", kind: str = "page_view", table: Channels | None = None, **fields: Any
) -> str | None:
    return (table or built_in()).landing(click(0, kind, page_url=url, **fields))


# -- landings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("click_id", "label"),
    [
        ("gclid-1", "google / cpc"),
        ("gbraid=1", "google / cpc"),
        ("wbraid:1", "google / cpc"),
        ("MSCLKID.1", "bing / cpc"),
        ("fbclid-1", "facebook / social"),
        ("ttclid-1", "tiktok / paid-social"),
    ],
)
def test_c8_a_landing_with_a_click_id_alone_is_not_direct(click_id: str, label: str) -> None:
    name, _, value = click_id.replace("=", "-").replace(":", "-").replace(".", "-").partition("-")
    assert landed(click_id=click_id) == f"{label} / (none)"
    assert landed(f"{SHOP}/x?a=1&{name}={value}#top") == f"{label} / (none)"
    assert landed(f"{SHOP}/x?{name}=") is None
    assert landed(click_id=click_id, utm_campaign="spring") == f"{label} / spring"


def test_tags_of_the_shop_are_before_click_ids_and_these_before_referrers() -> None:
    google, facebook = "https://www.google.de/", "https://m.facebook.com/l.php?u=x"
    assert landed(click_id="gclid-1", utm_source="partner", utm_medium="cpa") == "partner / cpa / (none)"
    assert landed(f"{SHOP}/?utm_source=mail&utm_medium=email&gclid=1") == "mail / email / (none)"
    assert landed(click_id="gclid-1", referrer=facebook) == "google / cpc / (none)"
    assert landed(referrer=facebook) == "facebook / social / (none)"
    assert landed(referrer=google, utm_medium="cpc", utm_campaign="c") == "google / cpc / c"
    assert landed(utm_campaign="c") == "(not set) / (none) / c"
    assert landed(utm_source="", referrer=google) == "google / organic / (none)"


@pytest.mark.parametrize(
    ("referrer", "label"),
    [
        ("https://www.google.com/", "google / organic / (none)"),
        ("https://www.google.co.uk/search?q=shoes", "google / organic / (none)"),
        ("https://google.evil.example/", "google.evil.example / referral / (none)"),
        ("https://notgoogle.com/", "notgoogle.com / referral / (none)"),
        ("https://mail.google.com/mail/u/0", "gmail / email / (none)"),
        ("https://gemini.google.com/app", "gemini / ai-assistant / (none)"),
        ("android-app://com.google.android.gm/", "gmail / email / (none)"),
        ("https://chatgpt.com/", "chatgpt / ai-assistant / (none)"),
        ("https://t.co/abc", "twitter / social / (none)"),
        ("https://WWW.Blog.Example:8080/a", "blog.example / referral / (none)"),
        ("https://www.paypal.com/checkoutnow", None),
        ("https://hooks.stripe.com/redirect", None),
        ("https://pay.amazon.de/x", None),
        (f"{SHOP}/cart", None),
        ("https://checkout.shop.example/done", None),
        (
            "https://otherwww.shop.example.evil.example/",
            "otherwww.shop.example.evil.example / referral / (none)",
        ),
        ("", None),
        ("nonsense", None),
        ("https://[", None),
    ],
)
def test_a_referrer_tells_of_a_landing_but_not_the_shop_and_not_who_takes_the_money(
    referrer: str, label: str | None
) -> None:
    assert landed(referrer=referrer) == label


def test_pings_and_purchases_repeat_their_page_and_are_no_landing() -> None:
    for kind in ("page_ping", "purchase", "add_to_cart"):
        assert (
            landed(f"{SHOP}/?gclid=1", kind, referrer="https://www.google.com/", click_id="gclid-1") is None
        )


def test_further_hosts_of_the_shop_are_the_shop() -> None:
    own = read_channels(own=("WWW.Shop.De",))
    assert landed(referrer="https://m.shop.de/", table=own) is None
    assert landed(referrer="https://m.shop.de/") == "m.shop.de / referral / (none)"


def test_an_address_with_very_many_parameters_is_read_as_one_with_none() -> None:
    assert landed(f"{SHOP}/?" + "&".join(f"a{n}=1" for n in range(10_000)) + "&gclid=1") is None


def test_a_label_can_be_taken_apart_again_whatever_is_in_it() -> None:
    draws = random.Random(4)
    for _ in range(2_000):
        parts = ["".join(draws.choice("ab / ") for _ in range(draws.randrange(6))) for _ in range(3)]
        label = label_of(*parts)
        assert len(label.split(" / ")) == 3, parts
        assert built_in().channel(label)


# -- channels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "channel"),
    [
        ("google / cpc / spring", "paid_search"),
        ("Google / CPC / spring", "paid_search"),
        ("facebook / cpc / (none)", "paid_social"),
        ("facebook / Paid_Social / (none)", "paid_social"),
        ("youtube / cpv / (none)", "paid_video"),
        ("somewhere / ppc / (none)", "paid_other"),
        ("google / organic / (none)", "organic_search"),
        ("instagram / social / (none)", "organic_social"),
        ("instagram.com / referral / (none)", "organic_social"),
        ("chatgpt.com / referral / (none)", "ai_assistant"),
        ("idealo.de / (none) / (none)", "organic_shopping"),
        ("blog.example / referral / (none)", "referral"),
        ("newsletter / email / weekly", "email"),
        ("gmail / cpc / (none)", "paid_other"),
        ("x / y / z", "unassigned"),
        ("direct", "direct"),
        (None, "direct"),
    ],
)
def test_channels_by_source_and_medium(label: str | None, channel: str) -> None:
    assert built_in().channel(label) == channel


def test_every_entry_of_the_table_means_something() -> None:
    table = built_in()
    for name in table.click_ids:
        said = landed(click_id=f"{name}-1")
        assert table.channel(said) not in ("unassigned", "direct"), name
    for host, name in table.hosts.items():
        said = landed(referrer=f"https://{host.replace('*', 'com')}/")
        assert said is not None, host
        assert said.startswith(f"{name} / "), host
        assert table.channel(said) not in ("unassigned", "referral", "direct"), host
    for host in table.returns:
        assert landed(referrer=f"https://a.{host.replace('*', 'co.uk')}/") is None, host


def test_a_table_of_ones_own_takes_the_place_of_the_apps(tmp_path: Path) -> None:
    path = tmp_path / "channels.json"
    path.write_text(
        '{"click_ids": {"cid": {"source": "us", "medium": "print"}}, "mediums": {"display": ["print"]},'
        ' "sources": {"search": {"find": ["find.example"]}}, "returns": ["bank.example"]}'
    )
    settings = ClickstreamSettings.model_validate(
        {"channels": {"table": path, "own": ["us.example"], "look_back": "7d"}}
    )
    table = settings.visitor_rules().channels
    assert table == settings.channels_table() == read_channels(path, ("us.example",))
    assert landed(click_id="cid-1", table=table) == "us / print / (none)"
    assert table.channel("us / print / (none)") == "display"
    assert landed(referrer="https://www.google.com/", table=table) == "google.com / referral / (none)"
    assert ClickstreamSettings().channels_table() == built_in()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expected `object`"),
        ("click_ids: {}", "missing required field"),
        (f"{NO_IDS}mediums: {{nonsense: [a]}}\nsources: {{}}", "Invalid enum value 'nonsense'"),
        (f"{NO_IDS}mediums: {{paid: [a], email: [a]}}\nsources: {{}}", "the medium a stands there twice"),
        (f"{NO_WORDS}sources: {{mail: {{a: [x.com]}}, social: {{b: [x.com]}}}}", "the host x.com stands"),
        (f"{NO_WORDS}sources: {{mail: {{a: []}}, social: {{a: []}}}}", "the source a stands there twice"),
        (f"{NO_WORDS}sources: {{mail: {{a: [y.com]}}}}", "the host y.com is a source"),
        (f"{NO_WORDS}sources: {{mail: {{a: ['http://x.com/']}}}}", "matching regex"),
        (f"{NO_WORDS}sources: {{}}\nmore: 1", "unknown field `more`"),
        ("a: [", "while parsing"),
    ],
)  # fmt: skip
def test_a_table_that_says_nothing_or_two_things_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "channels.yaml"
    path.write_text(text)
    with pytest.raises(ChannelsError, match=r"channels\.yaml") as refused:
        read_channels(path)
    assert said in str(refused.value)


def test_a_table_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(ChannelsError, match="cannot be read: No such file"):
        read_channels(tmp_path / "none.yaml")
    with pytest.raises(ValidationError):
        ClickstreamSettings.model_validate({"channels": {"look_back": "soon"}})


def test_the_table_travels_to_workers() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(built_in())) == built_in()  # noqa: S301
    assert channels_of(ChannelTable({}, {}, {}, [])).channel("a / b / c") == "unassigned"
    assert TABLE.name == "channels.yaml"


# -- touches of an order --------------------------------------------------------------------------------


def rows_of(*events: Any, batch: int = 1) -> dict[str, tuple[str, str, str, str]]:
    run = run_app(keyed(*events), batch=batch)
    return {
        row["order_id"]: (row["first_touch"], row["first_channel"], row["last_touch"], row["last_channel"])
        for row in run.table("orders", "order_id")
    }


def buy(at: int, order: str = "o1", **fields: Any) -> Click:
    return click(at, "purchase", order_id=order, amount=10.0, **fields)


def test_orders_and_sessions_say_their_channel() -> None:
    ad, search = click(0, click_id="gclid-1"), click(2 * HOUR, referrer="https://duckduckgo.com/")
    direct = click(4 * HOUR)
    run = run_app(keyed(ad, search, direct, buy(4 * HOUR + 1)), batch=1)
    (row,) = run.table("orders", "order_id")
    assert (row["first_touch"], row["first_channel"]) == ("google / cpc / (none)", "paid_search")
    assert (row["last_touch"], row["last_channel"]) == ("duckduckgo / organic / (none)", "organic_search")
    sessions = sorted(run.table("Visitors.sessions", "session_id"), key=lambda r: r["start_ms"])
    assert [r["channel"] for r in sessions] == ["paid_search", "organic_search", "direct"]
    # Who comes back from paying was brought by what brought them before.
    paid = click(4 * HOUR + 1, referrer="https://www.paypal.com/")
    assert rows_of(ad, search, direct, paid, buy(4 * HOUR + 2))["o1"][3] == "organic_search"


def test_a_last_touch_before_the_look_back_has_not_brought_an_order_the_first_one_stays() -> None:
    mail = click(0, utm_source="newsletter", utm_medium="email")
    label = "newsletter / email / (none)"
    assert rows_of(mail, buy(90 * DAY - 1))["o1"] == (label, "email", label, "email")
    assert rows_of(mail, buy(90 * DAY))["o1"] == (label, "email", "direct", "direct")


def test_a_person_looks_back_by_the_setting_over_all_browsers() -> None:
    person = Person()
    person.touched(Link("u:u1", 5, "v2", touches=[(5, "mail"), (40, "ad")], revision=1))
    person.touched(Link("u:u1", 5, "v3", touches=[(50, "search")], revision=1))
    bought = Purchase("u:u1", 100, "c", "v1")
    looked = {back: person.attribution(bought, back) for back in (1_000, 60, 51, 50, 1)}
    assert looked == {1_000: ("mail", "search"), 60: ("mail", "search"), 51: ("mail", "search"),
                      50: ("mail", ""), 1: ("mail", "")}  # fmt: skip


def test_of_what_a_browser_tells_of_its_touches_the_newest_holds() -> None:
    person = Person()
    one = Link("u:u1", 5, "v1", touches=[(5, "mail")], revision=2)
    for link in (one, Link("u:u1", 9, "v1", touches=[(1, "ad")], revision=1)):
        person.touched(link)
    assert (person.firsts, person.lasts) == ({"v1": Touch(5, "mail")}, {"v1": [Touch(5, "mail")]})
    person.touched(Link("u:u1", 9, "v1", revision=3))
    assert (person.firsts, person.lasts) == ({}, {"v1": []})


def test_touches_that_an_earlier_version_kept_count() -> None:
    known = BrowserState(first="mail / email / (none)", first_ms=5, last="google / cpc / (none)", last_ms=9)
    known.touch("bing / cpc / (none)", 12)
    touches = [(5, "mail / email / (none)"), (9, "google / cpc / (none)"), (12, "bing / cpc / (none)")]
    assert brought_by(known, "", 99, "split") == touches
    known.user_id = "u1"
    for shared in ("split", "last"):
        told = touches_told(known, shared, 0)
        assert told == {"u1": [(at, by, at, 0) for at, by in touches]}
        assert brought_by(known, "u1", 9, shared) == touches[:2]
        assert brought_by(known, "", 99, shared) == []


def test_touches_are_bounded_and_the_first_of_each_account_stays() -> None:
    known = BrowserState()
    owners = {at: f"u{at % 3}" for at in range(1_000)}
    for at in range(1_000):
        known.touch(f"a / b / {at}", at)
        known.touches = [(t, by, owners[t]) for t, by, _ in known.touches]
    assert len(known.touches) == MOST_TOUCHES
    assert [at for at, _, _ in known.touches] == [0, 1, 2, *range(1_000 - MOST_TOUCHES + 3, 1_000)]


# -- touches of a shared browser ------------------------------------------------------------------------


def history(draws: random.Random) -> list[Any]:
    """Logins, logouts, landings and purchases in one browser, and purchases in one that nobody shares."""
    found: list[Any] = [consent(0)]
    at, there = 10, ""
    for number in range(draws.randrange(4, 24)):
        at += draws.choice((1, 500, 40_000, 20 * MINUTE, 45 * MINUTE, 3 * HOUR, 2 * DAY))
        what = draws.choice(("login", "logout", "page_view", "page_view", "purchase"))
        if what == "login":
            there = draws.choice(("u1", "u2"))
        named = there and (what in ("login", "logout") or draws.random() < 0.7)
        fields: dict[str, Any] = {"user_id": there if named else None}
        if what == "page_view" and draws.random() < 0.7:
            fields |= {"utm_source": f"s{draws.randrange(3)}", "utm_medium": "cpc"}
        if what == "purchase":
            fields |= {"order_id": f"o{number}", "amount": 1.0}
        found.append(click(at, what, id=f"e{number}", **fields))
        if what == "logout":
            there = ""
    return found


def attributed(events: Sequence[Any], look_back_ms: int = 90 * DAY) -> dict[str, tuple[str, str]]:
    """Order → first and last touch, by a look at all events; who was there is known by its time."""
    found = {}
    clicks = [e for e in events if isinstance(e, Click)]
    for place, order in enumerate(clicks):
        if order.event_type != "purchase":
            continue
        marks = marks_of(clicks[: place + 1])

        def whose(event: Click, marks: Any = marks) -> str:
            return event.user_id or owner_of_all(marks, event.event_time_ms)

        owner = whose(order)
        mine = [e for e in clicks[:place] if e.utm_source and whose(e) == owner]
        label = [f"{e.utm_source} / cpc / (none)" for e in mine]
        near = [e for e in mine if e.event_time_ms > order.event_time_ms - look_back_ms]
        found[str(order.order_id)] = (
            label[0] if label else "direct",
            f"{near[-1].utm_source} / cpc / (none)" if near else "direct",
        )
    return found


def check_history(seed: int) -> int:
    """Events in order, in random batches; return how many orders there were."""
    draws = random.Random(seed)
    events = history(draws)
    chain = MemoryChain(Visitors(VisitorRules()), ("person", Persons()))
    rest, placed = keyed(*events), list[Any]()
    while rest:
        cut = draws.choice((1, 2, 5))
        placed += chain.run_batch(rest[:cut])
        rest = rest[cut:]
    placed += chain.drain()
    told = [msgspec.json.decode(e.payload, type=OrderPlaced) for e in placed if e.output == "placed"]
    assert {o.order_id: (o.first or "direct", o.last or "direct") for o in told} == attributed(events), seed
    return len(told)


def test_touches_of_a_shared_browser_are_whose_they_were_at_the_time() -> None:
    assert sum(check_history(seed) for seed in range(60)) > 80


def test_by_the_last_one_all_touches_are_the_accounts_that_was_seen_last() -> None:
    target = TestDriver(Visitors(VisitorRules(shared="last")))
    send(
        target,
        consent(0),
        click(1, utm_source="a"),
        click(2, user_id="u1"),
        click(3, utm_source="b", user_id="u1"),
    )
    send(target, click(4, "logout", user_id="u1"), click(5, utm_source="c"), click(6, user_id="u2"))
    links = [told for told in target.values() if isinstance(told, Link)]
    last = {link.person: [by for _, by in link.touches] for link in links}
    assert last["u:u2"] == [f"{name} / (none) / (none)" for name in "abc"]


def test_what_brought_who_withdraws_consent_is_no_touch_of_whoever_comes_next() -> None:
    target = TestDriver(Visitors(VisitorRules()))
    landing = "https://shop.example/x?utm_source=google&utm_medium=cpc"
    send(target, consent(0), click(1, page_url=landing), click(2, "login", user_id="u1"))
    send(target, consent(3, ("personalisation",), granted=False), consent(4), click(5, "login", user_id="u2"))
    send(target, click(6, page_url="https://shop.example/x?utm_source=bing&utm_medium=cpc", user_id="u2"))
    target.drain()
    links = [t for t in target.values() if isinstance(t, Link) and t.person == "u:u2"]
    assert [by for _, by in links[-1].touches] == ["bing / cpc / (none)"]


def test_a_login_that_comes_late_takes_the_touches_that_were_its() -> None:
    """u1 is said to have been there before the landing only after u2 has taken it.

    ```
    event time    landing 10      login u2 20         login u1 5 … logout u1 15
    arrives       1               2                   3
    ```
    """
    landing, second = click(10, utm_source="a"), click(20, "login", user_id="u2")
    first, out = click(5, "login", user_id="u1"), click(15, "logout", user_id="u1")
    target = TestDriver(Visitors(replace(VisitorRules())), out_of_orderness_ms=1_000)
    for event in (consent(0), landing, second, first, out):
        send(target, event)
    links = [told for told in target.values() if isinstance(told, Link)]
    newest = {link.person: link for link in sorted(links, key=lambda link: link.revision)}
    touch = (START + 10, "a / (none) / (none)")
    assert {person: link.touches for person, link in newest.items()} == {"u:u1": [touch], "u:u2": []}


def test_a_login_in_time_takes_the_touch_and_session_that_a_later_one_seemed_to_take() -> None:
    """Times up to the landing are settled when u2 has been there, but not who was there first after it.

    ```
    event time    landing 1   other 100m   login u2 112m   (watermark 92m)   login u1 96m   other 5h
    arrives       1           2            3                                 4              5
    ```
    """
    landing, late = click(1, utm_source="a"), click(96 * MINUTE, "login", user_id="u1")
    second = click(112 * MINUTE, "login", user_id="u2")
    others = [click(m * MINUTE, visitor="v2") for m in (100, 300)]
    target = TestDriver(Visitors(VisitorRules()), out_of_orderness_ms=20 * MINUTE)
    for event in (consent(0), landing, others[0], second, late, others[1]):
        send(target, event)
    target.drain()
    links = [told for told in target.values() if isinstance(told, Link)]
    newest = {link.person: link for link in sorted(links, key=lambda link: link.revision)}
    touches = {person: [at - START for at, _ in link.touches] for person, link in newest.items()}
    assert touches == {"u:u1": [1], "u:u2": []}
    rows = {row.session_id: row.user_id for row in target.values("sessions") if row.visitor_id == "v1"}
    assert rows[f"v1:{START + 1}"] == "u1"
