"""What must never be printed: which names are secret, and what a secret looks like in a text.

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
_WORDS: Final = (
    r"password|passwd|passphrase|passcode|(?<![a-z])pwd(?![a-z])|secret|token|jaas|credential|private|cookie"
    r"|(?:access|api|account|encryption|provided|shared)[._-]?key"
    r"|user[._-]?info|ssl[._]key[._]pem|keystore[._]key|oauthbearer[._]config"
    r"|(?<![a-z0-9])sas(?![a-z0-9])|(?<![a-z0-9])sig(?![a-z0-9])|signature"
)
_HIDDEN: Final = rf"{_WORDS}|authorization(?![._-]?(?:enabled|class|type|mode|method))"
#: Names that match but hold no secret: where a key lies is what one needs to see.
_HARMLESS: Final = (
    r"token[._]endpoint|(?:credentials?|key|token)[._-]?(?:source|provider)"
    r"|(?:key|token|secret|password|credentials?)[._-]?(?:file|path|location)(?:$|[\s=:])"
)
# Bounded, and only where a name begins: a long text without blanks takes no time that grows with its square.
_NAME: Final = rf"(?<![\w.-])[\w.-]{{0,200}}?(?:{_WORDS})[\w.-]{{0,100}}"
#: Ends at what separates one value from the next; ``\x7d`` is a brace, which log4j would count.
_VALUE: Final = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;&)\x7d\]]+"
#: With these words behind a colon a message says what is wrong with an option, and not what it holds.
_PROSE: Final = (
    r"(?:must|field|input|is|are|needs|write|give|missing|required|unknown|not|cannot|should|no|the|a|an|one)"
    r"\s"
)
_SCHEMES: Final = r"(?:basic|bearer|negotiate|digest|sharedkey|sharedkeylite|token|aws4-hmac-sha256)\s+"

#: What a secret looks like in a text. The group ``\1`` (none: nothing) is what may stay in front of the mask.
_IN_TEXT: Final[tuple[str, ...]] = (
    r"()-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]{0,30}PRIVATE KEY-----|[\s\S]*$)",
    # userinfo of a URI. The user stays where there is a password too, it says which account is meant.
    r"(://[^\s/:@]*:)[^\s/]+(?=@)",
    # Without a password it is one itself to a web server; of s3a:// or abfss:// it is the container.
    r"(\bhttps?://)[^\s/:@]+(?=@)",
    rf"(\bauthorization\\?[\"']?\s*[=:]\s*\\?[\"']?(?:{_SCHEMES})?)[^\s\"',;]+",
    r"(\bbearer\s+)(?=[^\s\"',;]*[0-9._~+/=-])[^\s\"',;]{6,}",
    r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    rf"(--{_NAME}\s+)(?:{_VALUE})",
    rf"({_NAME}\\?[\"']?\s*(?:=|:(?!\s+{_PROSE}))\s*)(?:\\\"[^\"\\]*\\\"|{_VALUE})",
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

    >>> bool(re.search(spark_name_regex(), "spark.hadoop.fs.s3a.encryption.key"))
    True
    """
    return rf"(?i)^(?![\s\S]*(?:{_HARMLESS}))[\s\S]*?(?:{_HIDDEN})|{_texts()}"


def spark_text_regex() -> str:
    """Return ``spark.redaction.string.regex``: what Spark takes out of plans, and its log out of messages.

    >>> re.sub(spark_text_regex(), MASK, "https://lake/x?sv=1&sig=abc%2B&se=2")
    'https://lake/x?sv=1&********&se=2'
    """
    return f"(?i){_texts()}"


def _texts() -> str:
    return "|".join(f"(?:{pattern})" for pattern in _IN_TEXT)
