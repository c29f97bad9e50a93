"""Redaction of secrets: secret names, and what a secret looks like in a text.

One source for everything that shows settings, errors, options and logs: :func:`is_secret` decides by name,
:func:`redact_text` cleans free text, :func:`spark_name_regex` and :func:`spark_text_regex` say the same to
Spark and to its log. So the expressions are written in what Python and Java have in common.
"""

from __future__ import annotations

import re
from typing import Final

#: What stands for a secret wherever it would be shown.
MASK: Final = "********"

#: Part of the name of an option, a field, a variable or a parameter whose value is secret.
#: By first letters, so that an expression that looks for them everywhere is quick.
_WORDS: Final = (
    r"(?=[acejkopstu])(?:p(?:ass(?:word|wd|phrase|code)|rivate|rovided[._-]?key|(?<![a-z]p)wd(?![a-z]))"
    r"|s(?:ecret|ignature|hared[._-]?key|sl[._]key[._]pem|(?<![a-z0-9]s)(?:as|ig)(?![a-z0-9]))"
    r"|token|jaas|c(?:redential|ookie)|(?:a(?:cc(?:ess|ount)|pi)|encryption)[._-]?key"
    r"|user[._-]?info|keystore[._]key|oauthbearer[._]config)"
)
_HIDDEN: Final = rf"{_WORDS}|authorization(?![._-]?(?:enabled|class|type|mode|method))"
#: Names that match but hold no secret: where a key lies is what one needs to see.
_PLACES: Final = r"(?:key|token|secret|password|credentials?)[._-]?(?:file|path|location)"
_SOURCES: Final = r"token[._]endpoint|(?:credentials?|key|token)[._-]?(?:source|provider)"
_HARMLESS: Final = rf"{_SOURCES}|{_PLACES}(?:$|[\s=:])"
# Bounded, and only where a name begins: a long text without blanks must not take time by its square.
_NAME: Final = rf"(?<![\w.-])[\w.-]{{0,200}}?(?:{_WORDS})[\w.-]{{0,100}}"
_FLAG: Final = rf"[\w.-]{{0,60}}?(?:{_WORDS})[\w.-]{{0,60}}"
#: Ends at what separates one value from the next; ``\x7d`` is a brace, which log4j would count.
_VALUE: Final = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;&)\x7d\]]+"
#: With these words behind a colon a message says what is wrong with an option, and not what it holds.
_PROSE: Final = (
    r"(?:must|field|input|is|are|needs|write|give|missing|required|unknown|not|cannot|should|no|the|a|an|one)"
    r"\s"
)
_SCHEMES: Final = r"(?:basic|bearer|negotiate|digest|sharedkey|sharedkeylite|token|aws4-hmac-sha256)\s+"

_PEM: Final = (
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
    r"(?:[\s\S]*?-----END [A-Z ]{0,30}PRIVATE KEY-----|[\s\S]*$)"
)
_HEADER: Final = rf"\s*\\?[\"']?(?:{_SCHEMES})?"
_BEARER: Final = r"(?=[^\s\"',;]*[0-9._~+/=-])[^\s\"',;]{6,}"
_JWT: Final = r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"

#: What a secret looks like in a text. The group ``\1`` (none: nothing) is what may stay in front of the mask.
_IN_TEXT: Final[tuple[str, ...]] = (
    rf"(){_PEM}",
    # userinfo of a URI. The user stays where there is a password too, it says which account is meant.
    r"(://[^\s/:@]*:)[^\s/]+(?=@)",
    # Without a password it is one itself to a web server; of s3a:// or abfss:// it is the container.
    r"(\bhttps?://)[^\s/:@]+(?=@)",
    rf"(\bauthorization\\?[\"']?\s*[=:]{_HEADER})[^\s\"',;]+",
    rf"(\bbearer\s+){_BEARER}",
    rf"(){_JWT}",
    rf"((?<!-)--{_FLAG}\s+)(?:{_VALUE})",
    rf"({_NAME}\\?[\"']?\s*(?:=|:(?!\s+{_PROSE}))\s*)(?:\\\"[^\"\\]*\\\"|{_VALUE})",
)
#: The same for Java, which is asked about every plan and so must be quick: each begins with a character
#: that is rare, and only then looks back at what it stands behind.
_BEHIND: Final = r"[\w.-]{0,50}\\?[\"']?\s{0,2}[=:]"
_IN_PLANS: Final[tuple[str, ...]] = (
    _PEM,
    r"(:(?://[^\s/:@]*:|(?<=https?:)//))[^\s/]+(?=@)",
    rf"([=:](?<=authorization\\?[\"']?\s{{0,2}}[=:]){_HEADER})[^\s\"',;]+",
    rf"(bearer\s+){_BEARER}",
    _JWT,
    rf"((?<!-)--{_FLAG}\s+)(?:{_VALUE})",
    rf"([=:](?<=(?:{_WORDS}){_BEHIND})(?<!(?:{_SOURCES}){_BEHIND})(?<!(?:{_PLACES})\\?[\"']?\s{{0,2}}[=:])"
    rf"(?<!:(?=\s{{1,2}}{_PROSE}))\s*)(?:\\\"[^\"\\]*\\\"|{_VALUE})",
)

_SECRET_NAME: Final = re.compile(_HIDDEN, re.IGNORECASE)
_HARMLESS_NAME: Final = re.compile(_HARMLESS, re.IGNORECASE)
_TEXTS: Final = tuple(re.compile(pattern, re.IGNORECASE) for pattern in _IN_TEXT)


def is_secret(name: str) -> bool:
    """Say whether values under ``name`` (an option, a key, a dotted path) must not be shown.

    >>> is_secret("sasl.password"), is_secret("spark.hadoop.fs.s3a.access.key"), is_secret("sasl.mechanism")
    (True, True, False)
    """
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def redact_text(text: str) -> str:
    """Return free text (a message, a URI, a log line) without the secrets that can be told in it.

    >>> redact_text("s3a://bob:hunter2@lake/tables")
    's3a://bob:********@lake/tables'
    >>> redact_text("user=bob password='hunter2' failed")
    'user=bob password=******** failed'
    >>> redact_text("Authorization: Bearer abc.def")
    'Authorization: Bearer ********'
    """
    for pattern in _TEXTS:
        text = pattern.sub(_masked, text)
    return text


def _masked(found: re.Match[str]) -> str:
    name = found[1]
    if _HARMLESS_NAME.search(name):
        return found[0]
    return name + MASK


def shown(name: str, value: str) -> str:
    """Return ``value`` as it may be shown under ``name``."""
    return MASK if is_secret(name) else redact_text(value)


def spark_name_regex() -> str:
    """Return ``spark.redaction.regex``: Spark hides a setting whose name or value it finds in one.

    >>> hides = re.compile("(?i)" + _HIDDEN)  # Python cannot read the rest, which looks back
    >>> bool(hides.search("spark.hadoop.fs.s3a.encryption.key")), _HIDDEN in spark_name_regex()
    (True, True)
    """
    return rf"(?i)^(?![\s\S]*(?:{_HARMLESS}))[\s\S]*?(?:{_HIDDEN})|{_in_plans()}"


def spark_text_regex() -> str:
    """Return ``spark.redaction.string.regex``: what Spark takes out of plans, and its log out of messages.

    It is Java's: Python cannot look back as far as a name is long.
    """
    return f"(?i){_in_plans()}"


def kept_groups() -> int:
    """Return how many groups :func:`spark_text_regex` has: what they hold may stay in front of the mask."""
    return sum(pattern.startswith("(") for pattern in _IN_PLANS)


def _in_plans() -> str:
    return "(?=[-=:be])(?:" + "|".join(_IN_PLANS) + ")"
