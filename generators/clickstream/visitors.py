"""Visitors of the shop: people with accounts and several devices, households, strangers."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from itertools import accumulate
from typing import Final, TypeVar

from millrace_apps.clickstream.contracts.events import DeviceKind, Gender, Purpose
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.engine.randomness import digest, normal, substream

_T = TypeVar("_T")

#: Browsers by kind of device with their rough share; the texts have the form that these browsers send.
BROWSERS: Final[tuple[tuple[DeviceKind, float, tuple[str, ...]], ...]] = (
    (
        "mobile",
        0.58,
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
            "Version/18.5 Mobile/15E148 Safari/604.1",
            "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) "
            "Chrome/138.0.0.0 Mobile Safari/537.36",
            "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) "
            "SamsungBrowser/28.0 Chrome/130.0.0.0 Mobile Safari/537.36",
        ),
    ),
    (
        "desktop",
        0.36,
        (
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
            "Chrome/138.0.0.0 Safari/537.36",
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) "
            "Version/18.5 Safari/605.1.15",
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:140.0) Gecko/20100101 Firefox/140.0",
            "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
        ),
    ),
    (
        "tablet",
        0.06,
        (
            "Mozilla/5.0 (iPad; CPU OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
            "Version/18.5 Mobile/15E148 Safari/604.1",
        ),
    ),
)
_KIND_BOUNDS: Final = tuple(accumulate(share for _, share, _ in BROWSERS))
#: Kinds, browsers and clocks are drawn from so many combinations.
_DEVICE_STEPS: Final = 8192
_COUNTRIES: Final = ("DE", "DE", "DE", "FR", "FR", "NL", "NL", "BE", "AT", "ES", "IT", "PL")
_GENDERS: Final[tuple[tuple[Gender, float], ...]] = (("f", 0.52), ("m", 0.98), ("x", 1.0))
#: How many devices a person has: one, two or three.
_DEVICE_BOUNDS: Final = (0.45, 0.85, 1.0)
#: Share of devices whose clock is right within a few seconds, within minutes, or off by hours.
_CLOCK_BOUNDS: Final = (0.75, 0.97, 1.0)
_CLOCK_SPREAD_MS: Final = (1_500, 90_000, 4 * 3_600_000)


class Touch:
    """A landing that came from somewhere; direct visits leave none."""

    __slots__ = ("at_ms", "label")

    def __init__(self, at_ms: int, label: str) -> None:
        self.at_ms = at_ms
        self.label = label


class Device:
    """A browser with its cookie and what the shop remembers in it."""

    __slots__ = (
        "clock_offset_ms",
        "consents",
        "first_touch",
        "kind",
        "last_touch",
        "linked",
        "parted",
        "sessions",
        "user_agent",
        "user_id",
        "visitor_id",
    )

    def __init__(self, visitor_id: str, kind: DeviceKind, user_agent: str, clock_offset_ms: int) -> None:
        self.visitor_id = visitor_id
        self.kind: DeviceKind = kind
        self.user_agent = user_agent
        self.clock_offset_ms = clock_offset_ms
        self.sessions = 0
        #: The account that is logged in.
        self.user_id: str | None = None
        #: Whether its owner has ever logged in here.
        self.linked = False
        #: Whether somebody has ever logged out: what is done then is nobody's, until the next login.
        self.parted = False
        #: What consent is given for; None before the first decision.
        self.consents: tuple[Purpose, ...] | None = None
        self.first_touch: Touch | None = None
        self.last_touch: Touch | None = None


class Household:
    """People who live together and share a tablet; only one of them is in the shop at a time."""

    __slots__ = ("free_at_ms", "tablet")

    def __init__(self) -> None:
        self.free_at_ms = 0
        self.tablet: Device | None = None


class Person:
    """Somebody with an account; ``life`` counts up with every erasure."""

    __slots__ = (
        "birth_year",
        "country",
        "devices",
        "gender",
        "household",
        "life",
        "loyalty",
        "number",
        "registered",
        "user_id",
    )

    def __init__(self, number: int, household: Household) -> None:
        self.number = number
        self.household = household
        self.life = 0
        self.user_id = ""
        self.devices: list[Device] = []
        self.registered = False
        self.gender: Gender = "x"
        self.birth_year = 1980
        self.country = "DE"
        #: How likely a visit without a cart has a login, 0 to 1.
        self.loyalty = 0.0


class Population:
    """Makes people when they first come, and strangers whenever one is needed.

    A person is a function of the seed and the person's number alone, whoever came before.

    Args:
        profile: How many people there are, and how unequal.
        names: Makes identifiers.
    """

    def __init__(self, profile: ClickstreamProfile, names: Names) -> None:
        self._seed = profile.seed
        self._people = profile.people
        self._power = 1 + profile.visitor_skew
        self._names = names
        self._persons: dict[int, Person] = {}
        self._households: dict[int, Household] = {}
        self._draw_person = substream(profile.seed, DOMAIN_NAME, "person").random
        self._draw_device = substream(profile.seed, DOMAIN_NAME, "device").random
        self._draw_stranger = substream(profile.seed, DOMAIN_NAME, "stranger").random

    def somebody(self, now_ms: int) -> Person | None:
        """Return a person who comes now, or None if the household is in the shop already."""
        number = int(self._people * self._draw_person() ** self._power)
        person = self._persons.get(number)
        if person is None:
            person = self._persons[number] = self._born(number)
        return person if person.household.free_at_ms < now_ms else None

    def device_of(self, person: Person) -> Device:
        """Return the device that a person uses this time: the first one more often than the others."""
        return person.devices[int(len(person.devices) * self._draw_device() ** 2)]

    def tablet_of(self, person: Person) -> Device:
        """Return the tablet that the household shares."""
        household = person.household
        if household.tablet is None:
            browser = BROWSERS[-1]
            visitor_id = self._names.of("visitor", self._cookie_number(person.number // 2, 0, 3))
            household.tablet = Device(visitor_id, browser[0], browser[2][0], 0)
        return household.tablet

    def stranger(self, number: int) -> Device:
        """Return the device of a visitor who has not been here before and will leave no account."""
        return make_device(self._names.of("visitor", 2 * number), self._draw_stranger())

    def renew(self, person: Person) -> None:
        """Let a person begin anew after an erasure: other account, other cookies."""
        person.life += 1
        self._equip(person)

    def _born(self, number: int) -> Person:
        household = self._households.get(number // 2)
        if household is None:
            household = self._households[number // 2] = Household()
        person = Person(number, household)
        self._equip(person)
        return person

    def _equip(self, person: Person) -> None:
        uniform = _Uniforms(self._seed, person.number, person.life)
        person.user_id = self._names.of("user", person.number + self._people * person.life)
        person.registered = False
        person.gender = pick(_GENDERS, uniform.draw())
        person.birth_year = 1945 + int(63 * uniform.draw())
        person.country = _COUNTRIES[int(len(_COUNTRIES) * uniform.draw())]
        person.loyalty = uniform.draw()
        count = 1 + bisect_right(_DEVICE_BOUNDS, uniform.draw())
        person.devices = [
            make_device(
                self._names.of("visitor", self._cookie_number(person.number, person.life, place)),
                uniform.draw(),
            )
            for place in range(count)
        ]

    def _cookie_number(self, number: int, life: int, place: int) -> int:
        # Odd, as strangers' are even.
        return 2 * (4 * (number + self._people * life) + place) + 1


class _Uniforms:
    """A few uniform numbers that depend on who somebody is and on nothing else."""

    def __init__(self, seed: int, number: int, life: int) -> None:
        self._bits = int(digest(DOMAIN_NAME, seed, "person", number, life), 16)

    def draw(self) -> float:
        """Return the next uniform number; there are eight of 16 bits."""
        self._bits, low = divmod(self._bits, 1 << 16)
        return (low + 0.5) / 65536


def make_device(visitor_id: str, uniform: float) -> Device:
    """Return a browser of a kind, name and clock that one uniform number decides."""
    kinds = _kinds_of_device()
    return Device(visitor_id, *kinds[int(uniform * len(kinds))])


@cache
def _kinds_of_device() -> list[tuple[DeviceKind, str, int]]:
    return [_kind_of_device((step + 0.5) / _DEVICE_STEPS) for step in range(_DEVICE_STEPS)]


def _kind_of_device(uniform: float) -> tuple[DeviceKind, str, int]:
    place = min(bisect_right(_KIND_BOUNDS, uniform), len(BROWSERS) - 1)
    kind, share, agents = BROWSERS[place]
    # What is left of one number is a uniform number again: for the browser, then for the clock.
    rest = min(max((uniform - _KIND_BOUNDS[place] + share) / share, 0.0), 0.999999)
    which, rest = divmod(rest * len(agents), 1.0)
    return kind, agents[int(which)], _clock_offset_ms(rest)


def pick(choices: tuple[tuple[_T, float], ...], uniform: float) -> _T:
    """Return the first choice whose upper bound is above the number.

    >>> pick((("a", 0.5), ("b", 1.0)), 0.7)
    'b'
    """
    for choice, bound in choices:
        if uniform < bound:
            return choice
    return choices[-1][0]


def _clock_offset_ms(uniform: float) -> int:
    place = min(bisect_right(_CLOCK_BOUNDS, uniform), len(_CLOCK_BOUNDS) - 1)
    low = _CLOCK_BOUNDS[place - 1] if place else 0.0
    within = min((uniform - low) / (_CLOCK_BOUNDS[place] - low), 0.999999)
    return round(_CLOCK_SPREAD_MS[place] * normal(within) / 2)
