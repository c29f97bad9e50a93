"""Keys by which card numbers become tokens, and their replacement while histories go on.

A token is a keyed hash (HMAC-SHA-256, RFC 2104) cut to 96 bits, with the id of its key: equal numbers have
equal tokens, and without the key a token can neither be turned back nor guessed by trying all numbers.

A file has a key a line. The first one makes tokens. A number that had a token when the key was replaced
keeps it: the tokens that an older key had made by then stand, sorted, in a file beside it. So what is known
of a card is found under the same token before and after, and both kinds of tokens stand side by side.
"""

from __future__ import annotations

import base64
import functools
import hmac
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from millrace.errors import UserError
from millrace.privacy.masking import PREFIX, TOKEN
from millrace.state.keyring import StateKeyError, generate_key, key_id, parse_keys

#: Shortest key, bytes.
MIN_KEY: Final = 32
#: Leads, in a file, a key of before keys had ids: what follows is its base64.
_OLDER: Final = "token-key-without-id:"
_TOKEN_BYTES: Final = 12
_WORD: Final = re.compile(r"[\s,]+")


class TokenKeyError(UserError):
    """The key for tokens cannot be used."""


class TokenKey(NamedTuple):
    """A key.

    Attributes:
        secret: Its bytes.
        id: Its public name, 8 hexadecimal digits, which its tokens carry; empty of a key that is the bytes of
            a file as they are.
    """

    secret: bytes
    id: str

    def token(self, digest: bytes) -> str:
        """Return a token from its 12 bytes."""
        return f"{PREFIX}{self.id}{'-' * bool(self.id)}{digest.hex()}"

    def digest(self, number: str) -> bytes:
        """Return the 12 bytes of a number's token."""
        return hmac.digest(self.secret, number.encode(), "sha256")[:_TOKEN_BYTES]


class TokenRing:
    """Makes tokens of numbers.

    Args:
        keys: The keys, the one that makes tokens first.
        known: For each of the others: the digests of the tokens that it had made, sorted, back to back.

    Example:
        >>> ring = TokenRing([TokenKey(b"0" * 32, "")])
        >>> ring.token("4111111111111111")
        'card-237ee474b94d38c4e6358ec1'
        >>> rotated = TokenRing([TokenKey(b"1" * 32, "0a0b0c0d"), TokenKey(b"0" * 32, "")],
        ...                     [TokenKey(b"0" * 32, "").digest("4111111111111111")])
        >>> rotated.token("4111111111111111"), rotated.token("5500005555555559")[:14]
        ('card-237ee474b94d38c4e6358ec1', 'card-0a0b0c0d-')
    """

    def __init__(self, keys: Sequence[TokenKey], known: Sequence[bytes] = ()) -> None:
        self.keys = tuple(keys)
        self._known = tuple(known)
        #: How many tokens each of the older keys had made when it was replaced.
        self.known = tuple(len(one) // _TOKEN_BYTES for one in known)
        #: Number → token.
        self.token = lru_cache(maxsize=65_536)(self._made)

    def tokens(self, number: str) -> list[str]:
        """Return the tokens that a number may stand under, by each key; the first is the one it has now."""
        return list(dict.fromkeys([self.token(number), *(k.token(k.digest(number)) for k in self.keys)]))

    def _made(self, number: str) -> str:
        # The oldest first: what a key in between found known was not made by itself.
        for key, known in zip(reversed(self.keys[1:]), reversed(self._known), strict=True):
            digest = key.digest(number)
            if _has(known, digest):
                return key.token(digest)
        return self.keys[0].token(self.keys[0].digest(number))


def _has(known: bytes, digest: bytes) -> bool:
    count = len(known) // _TOKEN_BYTES
    place = bisect_left(
        range(count), digest, key=lambda at: known[at * _TOKEN_BYTES : (at + 1) * _TOKEN_BYTES]
    )
    return known[place * _TOKEN_BYTES : (place + 1) * _TOKEN_BYTES] == digest


class TokenKeys(NamedTuple):
    """Where the keys are and which must be found there; holds no key, so it may travel and be logged.

    Attributes:
        file: The file.
        ids: Ids of the keys, the one that makes tokens first.
    """

    file: str
    ids: tuple[str, ...]

    def ring(self) -> TokenRing:
        """Return the keys as this machine has them; read once per process.

        Raises:
            TokenKeyError: They are not there, or are others.
        """
        return _ring(self)


@functools.cache
def _ring(keys: TokenKeys) -> TokenRing:
    ring = read_ring(Path(keys.file))
    if tuple(key.id for key in ring.keys) != keys.ids:
        raise TokenKeyError(
            f"the keys for tokens in {keys.file} are not those of the driver on this machine: "
            "the file must be the same wherever Spark runs"
        )
    return ring


def keys_in(path: Path) -> TokenKeys:
    """Return which keys a file has.

    Raises:
        TokenKeyError: It cannot be read, or has no key that can be used.
    """
    path = path.expanduser().absolute()
    return TokenKeys(str(path), tuple(key.id for key in _read(path)))


def read_ring(path: Path) -> TokenRing:
    """Return the keys of a file, with the tokens that the older ones had made.

    Raises:
        TokenKeyError: It, or a file of tokens beside it, cannot be read.
    """
    keys = _read(path)
    return TokenRing(keys, [_bytes_of(known_file(path, key)) for key in keys[1:]])


def known_file(path: Path, key: TokenKey) -> Path:
    """Return where the tokens stand that an older key had made when it was replaced."""
    return path.with_name(f"{path.name}.known-{key.id or 'first'}")


def make_key_file(path: Path) -> bool:
    """Write a new key to a file that only its owner can read, unless it is there.

    Returns:
        Whether it was written.

    Raises:
        TokenKeyError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _write_new(path, f"{generate_key()}\n".encode())
    except OSError as error:
        raise TokenKeyError(f"{path} cannot be written: {error.strerror or error}") from error


def rotate(path: Path, tokens: Iterable[str]) -> tuple[str, int]:
    """Put a new key before those of a file: it makes the tokens of numbers that have none.

    Args:
        path: The file.
        tokens: All tokens that are in use, whatever else is among them.

    Returns:
        The id of the new key, and how many tokens of the one before it stay.

    Raises:
        TokenKeyError: A file cannot be read or written.
    """
    keys = _read(path)
    made = sorted({digest for one in tokens if (digest := _digest_of(one, keys[0])) is not None})
    new = generate_key()
    try:
        # The tokens first: with them beside it a file without the new key means what it did before.
        _replace(known_file(path, keys[0]), b"".join(made))
        lines = [new, *(_line_of(key) for key in keys)]
        _replace(path, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise TokenKeyError(f"{path} cannot be written: {error.strerror or error}") from error
    return key_id(parse_keys(new)[0]), len(made)


def _digest_of(token: str, key: TokenKey) -> bytes | None:
    start = key.token(b"")
    if not TOKEN.fullmatch(token) or not token.startswith(start) or len(token) != len(start) + 24:
        return None
    return bytes.fromhex(token[-24:])


def _line_of(key: TokenKey) -> str:
    if key.id:
        return "millrace-key:" + base64.urlsafe_b64encode(key.secret).decode().rstrip("=")
    return _OLDER + base64.b64encode(key.secret).decode()


def _read(path: Path) -> list[TokenKey]:
    raw = _bytes_of(path).strip()
    if not raw.startswith((b"millrace-key:", b"#", _OLDER.encode())):
        if len(raw) < MIN_KEY:
            raise TokenKeyError(
                f"privacy.token_key_file: {path} has {len(raw)} bytes; it needs {MIN_KEY} or more"
            )
        return [TokenKey(raw, "")]
    keys = []
    try:
        for line in raw.decode().splitlines():
            for word in filter(None, _WORD.split(line.partition("#")[0])):
                if word.startswith(_OLDER):
                    keys.append(TokenKey(base64.b64decode(word.removeprefix(_OLDER), validate=True), ""))
                else:
                    (secret,) = parse_keys(word, where=str(path))
                    keys.append(TokenKey(secret, key_id(secret)))
    except (StateKeyError, ValueError):
        raise TokenKeyError(
            f"privacy.token_key_file: {path} has a line that is no key (and is not shown)"
        ) from None
    if not keys or len({key.id for key in keys}) < len(keys):
        raise TokenKeyError(f"privacy.token_key_file: {path} has no key, or one twice")
    return keys


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenKeyError(f"privacy.token_key_file: {path} cannot be read: {error.strerror}") from None


def _write_new(path: Path, content: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return True


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    _write_new(part, content)
    part.replace(path)
