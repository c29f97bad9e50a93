"""Secrets do not get into anything that is shown: by name, in free text, in what the command line says."""

from __future__ import annotations

import os
import random
import string
import time

import pytest

from millrace import cli
from millrace.errors import MillraceError, UserError
from millrace.runtime.defaults import STREAMING_DEFAULTS
from millrace.runtime.redaction import MASK, is_secret, redact_text, shown, spark_name_regex, spark_text_regex
from tests.unit.millrace.runtime.secret_cases import HIDDEN, SECRET, SHOWN, WORD


@pytest.mark.parametrize("text", HIDDEN)
def test_a_secret_in_a_text_is_masked_and_told_of(text: str) -> None:
    cleaned = redact_text(text)
    assert MASK in cleaned
    assert not any(part in cleaned for part in (SECRET, WORD, SECRET[:7], WORD[-6:]))


@pytest.mark.parametrize("text", SHOWN)
def test_what_helps_to_find_a_mistake_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "name",
    ["fs.azure.account.key.lake.dfs.core.windows.net", "fs.azure.sas.c.lake.blob.core.windows.net",
     "parquet.encryption.key.list", "spark.hadoop.fs.s3a.encryption.key", "fs.s3a.server-side-encryption.key",
     "header.Authorization", "sharedAccessSignature", "x.pwd", "set.cookie", "spark.ssl.keyPassword"],
)  # fmt: skip
def test_names_of_storage_and_servers_are_known(name: str) -> None:
    assert is_secret(name)
    assert shown(name, SECRET) == MASK


@pytest.mark.parametrize(
    "name",
    ["state.encryption.key_file", "spark.millrace.state.keyFile", "spark.authenticate.secret.file",
     "hadoop.security.authorization.enabled", "sasl.mechanism", "parquet.encryption.footer.key", "signal"],
)  # fmt: skip
def test_where_a_key_lies_is_shown(name: str) -> None:
    assert not is_secret(name)


def test_a_secret_anywhere_in_noise_is_masked_and_the_noise_stays() -> None:
    """Told in the way that is easiest to tell: the name, an equals sign, the value."""
    rng = random.Random(7)
    noise = string.ascii_lowercase + " ,;()[]{}\n\t/."
    for _ in range(500):
        before, after = ("".join(rng.choices(noise, k=rng.randrange(60))) for _ in range(2))
        name = rng.choice(("sasl.password", "fs.azure.account.key.x", "sig", "AccountKey", "api_key"))
        secret = "".join(rng.choices(string.ascii_letters + string.digits + "+/=", k=rng.randrange(12, 60)))
        cleaned = redact_text(f"{before} {name}={secret} {after}")
        assert secret not in cleaned
        assert f"{name}={MASK} {after}" in cleaned


@pytest.mark.parametrize(
    "piece", ["a", "token", "://", "bearer ", "password ", "-----BEGIN PRIVATE KEY-----", "--token\n", "-",
              "https://", "authorization:", 'token="', "eyJaaaaaaaa.", "sas="],
)  # fmt: skip
def test_a_long_text_takes_no_time_that_grows_with_its_square(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    redact_text(text)
    assert time.process_time() - began < 5  # seconds; without bounds it was minutes


def test_sparks_expressions_are_the_defaults_of_every_session() -> None:
    assert STREAMING_DEFAULTS["spark.redaction.regex"].value == spark_name_regex()
    assert STREAMING_DEFAULTS["spark.redaction.string.regex"].value == spark_text_regex()


@pytest.mark.parametrize(("kind", "code"), [(UserError, 2), (MillraceError, 1), (ZeroDivisionError, 1)])
def test_the_command_line_masks_what_an_error_tells(
    kind: type[Exception], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of any part, even one that repeats what it was given; a traceback where it is no user's."""
    monkeypatch.delenv("MILLRACE_TRACEBACK", raising=False)

    def fail(**_: object) -> None:
        raise kind(f"cannot reach https://{WORD}@lake")

    monkeypatch.setattr(cli, "build", lambda: fail)
    before = os.umask(0o022)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        os.umask(before)
    said = capsys.readouterr().err
    assert ended.value.code == code
    assert said.endswith(f": cannot reach https://{MASK}@lake\n")
    assert said.count("\n") == 1 or kind is ZeroDivisionError
