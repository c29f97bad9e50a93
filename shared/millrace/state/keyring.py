"""Keys that state is encrypted with: where they are, which one writes, and what they do to bytes.

A key is 256 random bits, written as a line of text. The first one of a ring encrypts; all of them
decrypt, so that a key can be replaced while what was written with the old one is still there. Keys stay
where they were configured, a file or an environment variable: what travels to Spark's workers, and so
into plans, is a :class:`KeyReference`, which says where to look and which keys must be found there.

Values are encrypted with AES-256-GCM (NIST SP 800-38D), each with a random nonce, under keys that
HKDF-SHA256 (RFC 5869) derives from the configured one and a random salt: one of them is used for at
most 2^24 values, far below the 2^32 at which random nonces of one key may begin to repeat.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from millrace.errors import UserError
from millrace.state.cells import StateCorrupted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: The environment variable that may hold the keys. Its name has "SECRET" in it, so that Spark's pages and
#: event logs mask it where it is set by ``spark.executorEnv``.
KEYS_VARIABLE: Final = "MILLRACE_STATE_SECRET_KEYS"
#: The setting of a Spark session that names the file of keys.
KEY_FILE_CONF: Final = "spark.millrace.state.keyFile"
#: The name of the cipher, as contracts have it.
CIPHER: Final = "AES-256-GCM"

_PREFIX: Final = "millrace-key:"
_KEY_BYTES: Final = 32
_ID_BYTES: Final = 4
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_SALTED: Final = _ID_BYTES + _SALT_BYTES
_TEXT_FROM: Final = _SALTED + _NONCE_BYTES
#: Values that one derived key encrypts.
_VALUES_PER_SALT: Final = 1 << 24
#: Derived keys that a ring remembers.
_REMEMBERED: Final = 4_096


class StateKeyError(UserError):
    """The keys that are configured are not those that the state needs."""


def generate_key() -> str:
    """Return a new key as text, from the operating system's source of randomness.

    >>> a, b = generate_key(), generate_key()
    >>> (a != b, len(parse_keys(f"{a} {b}")))
    (True, 2)
    """
    return _PREFIX + base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode().rstrip("=")


def parse_keys(text: str, *, where: str = "the text") -> list[bytes]:
    """Return the keys in a text: separated by white space or commas, ``#`` begins a comment.

    Args:
        text: The text.
        where: What it is, for messages; the text itself is never in one.

    Raises:
        StateKeyError: It has no key, or something that is none.
    """
    keys: list[bytes] = []
    for number, line in enumerate(text.splitlines(), start=1):
        for word in re.split(r"[\s,]+", line.partition("#")[0]):
            if word:
                keys.append(_parse(word, f"line {number} of {where}"))
    if not keys:
        raise StateKeyError(f"{where} has no key: make one with `millrace keygen`")
    return keys


def _parse(word: str, where: str) -> bytes:
    text = word.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if text == word or len(key) != _KEY_BYTES:
        # Not shown: it may be a key with a typing error.
        raise StateKeyError(
            f"{where} is not a key: one is {_PREFIX} and 43 characters, as `millrace keygen` prints it"
        )
    return key


def key_id(key: bytes) -> str:
    """Return the public name of a key: a hash of it, 8 hexadecimal digits."""
    return hashlib.blake2b(key, digest_size=_ID_BYTES, person=b"millrace key id").hexdigest()


class Keyring:
    """Keys that open values, the first of which also seals them.

    Args:
        keys: The keys, 32 bytes each.

    Raises:
        StateKeyError: There is none, one stands there twice, or the package ``cryptography`` is missing.

    Example:
        >>> ring = Keyring(parse_keys(generate_key()))
        >>> sealed = ring.seal(b"balance", b"page 1")
        >>> (b"balance" in sealed, ring.open(sealed, b"page 1"))
        (False, b'balance')
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {bytes.fromhex(key_id(key)): key for key in keys}
        if not keys or any(len(key) != _KEY_BYTES for key in keys):
            raise StateKeyError(f"a key ring needs keys of {_KEY_BYTES} bytes")
        if len(self._keys) != len(keys):
            raise StateKeyError("a key stands twice among the configured ones: leave one of them out")
        self._derived: dict[bytes, AESGCM] = {}
        self._current = next(iter(self._keys))
        self._salted = b""
        self._left = 0
        self._cipher, self._derive = _primitives()

    @property
    def ids(self) -> tuple[str, ...]:
        """Public names of the keys, that of the one that seals first."""
        return tuple(known.hex() for known in self._keys)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.ids)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys do not travel: send a KeyReference")

    def seal(self, data: bytes, place: bytes) -> bytes:
        """Encrypt a value.

        Args:
            data: The value.
            place: Where it belongs; it can be opened for this place only.

        Returns:
            Key id, salt, nonce, encrypted value and tag.
        """
        if not self._left:
            self._salted = self._current + os.urandom(_SALT_BYTES)
            self._left = _VALUES_PER_SALT
        self._left -= 1
        nonce = os.urandom(_NONCE_BYTES)
        return self._salted + nonce + self._key_of(self._salted).encrypt(nonce, data, self._salted + place)

    def open(self, sealed: bytes, place: bytes) -> bytes:
        """Decrypt a value.

        Args:
            sealed: What :meth:`seal` returned.
            place: Where it was found.

        Raises:
            StateKeyError: It was encrypted with a key that this ring does not have.
            StateCorrupted: It was changed, cut or moved since it was written.
        """
        from cryptography.exceptions import InvalidTag

        if len(sealed) < _TEXT_FROM + _TAG_BYTES:
            raise StateCorrupted("it is cut off")
        salted = sealed[:_SALTED]
        if salted[:_ID_BYTES] not in self._keys:
            raise StateKeyError(
                f"it is encrypted with key {sealing_key_id(sealed)}, which is not among those "
                f"configured ({', '.join(self.ids)}): add it behind the first one"
            )
        try:
            return self._key_of(salted).decrypt(
                sealed[_SALTED:_TEXT_FROM], sealed[_TEXT_FROM:], salted + place
            )
        except InvalidTag:
            raise StateCorrupted("it was changed or moved since it was encrypted") from None

    def _key_of(self, salted: bytes) -> AESGCM:
        """Return the key that belongs to a key id and a salt."""
        derived = self._derived.get(salted)
        if derived is None:
            if len(self._derived) >= _REMEMBERED:
                self._derived.clear()
            key = self._derive(self._keys[salted[:_ID_BYTES]], salted[_ID_BYTES:])
            derived = self._derived[salted] = self._cipher(key)
        return derived


def sealing_key_id(sealed: bytes) -> str:
    """Return the id of the key that a value was encrypted with."""
    return sealed[:_ID_BYTES].hex()


def _primitives() -> tuple[type[AESGCM], Any]:
    """Return the cipher and the derivation of keys from the library, which is an extra."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise StateKeyError(
            f"state keys are configured, and Python's package cryptography is missing ({error}): "
            "pip install 'millrace[encryption]', also where Spark's executors run"
        ) from error

    def derive(key: bytes, salt: bytes) -> bytes:
        return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=salt, info=b"millrace state 1").derive(key)

    return AESGCM, derive


@dataclass(frozen=True)
class KeyReference:
    """Where the keys are and which must be found there; holds no key, so it may travel and be logged.

    Args:
        file: The file of keys; ``None``: the environment variable ``MILLRACE_STATE_SECRET_KEYS``.
        ids: Ids of the keys that were there; the first one seals.
    """

    file: str | None
    ids: tuple[str, ...]

    def ring(self) -> Keyring:
        """Return the keys as this machine has them; read once per process.

        Raises:
            StateKeyError: They are not there, or are others.
        """
        return _ring(self)


@functools.cache
def _ring(reference: KeyReference) -> Keyring:
    keys = {key_id(key): key for key in _read(reference.file, os.environ)}
    missing = [one for one in reference.ids if one not in keys]
    if missing:
        raise StateKeyError(
            f"{_place_of(reference.file)} on this machine does not have key {', '.join(missing)}: "
            "it must be the same wherever Spark runs"
        )
    return Keyring([keys[one] for one in reference.ids])


def read_ring(file: str | Path) -> Keyring:
    """Return the keys of a file, as they are now.

    Raises:
        StateKeyError: The file cannot be read, or holds something else.
    """
    return Keyring(_read(str(file), {}))


def write_key_file(path: Path) -> str:
    """Write a new key to a new file that only its owner can read.

    Returns:
        Its id.

    Raises:
        StateKeyError: The file is there already, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise StateKeyError(
            f"{path} is there already: use another file, or add a key to it with --rotate"
        ) from None
    except OSError as error:
        raise StateKeyError(f"{path} cannot be written: {error.strerror or error}") from error
    key = generate_key()
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{key}\n")
    return key_id(parse_keys(key)[0])


def rotate_key_file(path: Path) -> None:
    """Put a new key before those of a file, which keeps its permissions.

    Raises:
        StateKeyError: The file is not one of keys, or cannot be written.
    """
    read_ring(path)
    part = path.with_name(f"{path.name}.part")
    try:
        kept = path.read_text("utf-8")
        mode = path.stat().st_mode & 0o777
        # Never readable by more users than the file that it becomes.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{generate_key()}\n{kept}")
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        part.replace(path)
    except OSError as error:
        raise StateKeyError(f"{path} cannot be written: {error.strerror or error}") from error


def configured_keys(file: str | Path | None, env: Mapping[str, str] | None = None) -> KeyReference | None:
    """Return what keys are configured, ``None`` where state is kept in clear.

    Args:
        file: The file of keys, if one is configured.
        env: The environment; default that of this process.

    Raises:
        StateKeyError: Keys are configured twice, cannot be read, or cannot be used.
    """
    env = os.environ if env is None else env
    if not file and not env.get(KEYS_VARIABLE):
        return None
    if file and env.get(KEYS_VARIABLE):
        raise StateKeyError(
            f"state keys are configured twice, in the file {file} and in {KEYS_VARIABLE}: keep one of them"
        )
    path = str(Path(file).expanduser().absolute()) if file else None
    return KeyReference(path, Keyring(_read(path, env)).ids)


def _place_of(file: str | None) -> str:
    return file or f"the environment variable {KEYS_VARIABLE}"


def _read(file: str | None, env: Mapping[str, str]) -> list[bytes]:
    where = _place_of(file)
    if file is None:
        text = env.get(KEYS_VARIABLE)
        if text is None:
            raise StateKeyError(f"{where} is not set on this machine: set it wherever Spark runs")
    else:
        try:
            text = Path(file).read_text("utf-8")
        except OSError as error:
            raise StateKeyError(
                f"the file of state keys {file} cannot be read: {error.strerror or error}"
            ) from error
        except UnicodeDecodeError:
            raise StateKeyError(f"{where} is not a file of keys: `millrace keygen` makes one") from None
    return parse_keys(text, where=where)
