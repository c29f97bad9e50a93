"""What Spark's JVM is told by files, and which secrets would be told to everybody even so."""

from __future__ import annotations

import os
import random
import shlex
import stat
from pathlib import Path

import pytest
from pyspark import java_gateway
from pyspark.errors import PySparkRuntimeError

from millrace.errors import UserError
from millrace.runtime import session
from millrace.runtime.launch import (
    SUBMIT_VARIABLE,
    SecretInArguments,
    as_properties,
    log_configuration,
    refuse_secret_arguments,
    submit_arguments,
)
from millrace.runtime.redaction import spark_text_regex

SETTINGS = {"spark.a": "b", "spark.hadoop.fs.s3a.secret.key": "hUnter2"}


def read_properties(text: str) -> dict[str, str]:
    """Read a properties file by the rules of java.util.Properties: one line each, no comments."""
    found = {}
    for line in text.split("\n")[:-1]:
        parts: list[list[str]] = [[]]
        characters = iter(line)
        for character in characters:
            if character == "\\":
                escaped = next(characters)
                if escaped == "u":
                    escaped = chr(int("".join(next(characters) for _ in range(4)), 16))
                else:
                    escaped = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(escaped, escaped)
                parts[-1].append(escaped)
            elif character in "=: \t" and len(parts) == 1:
                parts.append([])
            else:
                parts[-1].append(character)
        name, value = ("".join(p).encode("utf-16", "surrogatepass").decode("utf-16") for p in parts)
        found[name] = value
    return found


def test_any_text_comes_back_from_a_properties_file() -> None:
    rng = random.Random(3)
    letters = " \\=:#!\n\r\t\fab\"'${}é漢\U0001f600"
    for _ in range(2_000):
        made = {
            f"spark.{number}{''.join(rng.choices(letters, k=3))}": "".join(rng.choices(letters, k=12))
            for number in range(3)
        }
        assert read_properties(as_properties(made)) == made


@pytest.mark.parametrize("given", [None, "--jars 'a b.jar' pyspark-shell"])
def test_the_file_is_there_while_spark_starts_and_for_this_user_alone(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SUBMIT_VARIABLE, raising=False)
    if given:
        monkeypatch.setenv(SUBMIT_VARIABLE, given)
    before = os.umask(0)
    try:
        with submit_arguments(SETTINGS, tmp_path):
            words = shlex.split(os.environ[SUBMIT_VARIABLE])
            file = Path(words[words.index("--properties-file") + 1])
            assert read_properties(file.read_text()) == SETTINGS
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert words[3:] == shlex.split(given or "pyspark-shell")
            assert "hUnter2" not in " ".join(words)
    finally:
        os.umask(before)
    assert not file.exists()
    assert os.environ.get(SUBMIT_VARIABLE) == given


def test_the_file_is_gone_also_where_java_does_not_start(tmp_path: Path) -> None:
    def start() -> None:
        with submit_arguments(SETTINGS, tmp_path):
            raise OSError("no Java")

    with pytest.raises(OSError, match="no Java"):
        start()
    assert list(tmp_path.iterdir()) == []


def test_two_properties_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBMIT_VARIABLE, "--properties-file mine pyspark-shell")
    with pytest.raises(UserError, match=r"put its settings into spark\.conf"), submit_arguments({}, tmp_path):
        pass


@pytest.mark.parametrize("kind", ["extra", "default"])
@pytest.mark.parametrize("side", ["driver", "executor"])
def test_javas_options_hold_no_secret_since_they_stand_in_the_list_of_processes(side: str, kind: str) -> None:
    name = f"spark.{side}.{kind}JavaOptions"
    refuse_secret_arguments({name: "-Xss4m -Djava.security.auth.login.config=/etc/jaas.conf"})
    with pytest.raises(SecretInArguments, match="JDK_JAVA_OPTIONS") as caught:
        refuse_secret_arguments({name: "-Djavax.net.ssl.keyStorePassword=hUnter2"})
    assert "hUnter2" not in str(caught.value)


def test_the_log_is_configured_with_the_expression_that_spark_has(tmp_path: Path) -> None:
    text = log_configuration(tmp_path).read_text()
    assert spark_text_regex().replace("\\", "\\\\") in text
    assert "@" not in text.replace("(?=@)", "").replace("@]", "]")


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022])
def test_hadoop_gives_files_the_rights_that_this_process_gives(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "jar_paths", lambda group: [])
    before = os.umask(umask)
    try:
        conf = session.session_conf(master="local[1]", scratch=tmp_path)
    finally:
        os.umask(before)
    assert int(conf["spark.hadoop.fs.permissions.umask-mode"], 8) == umask
    # And nobody else on this machine can send anything to the driver's ports.
    assert conf["spark.authenticate"] == "true"


def test_a_session_refuses_a_secret_in_javas_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "jar_paths", lambda group: [])
    conf = {"spark.driver.extraJavaOptions": "-Dx.password=hUnter2"}
    with pytest.raises(SecretInArguments):
        session.session_conf(master="local[1]", scratch=tmp_path, conf=conf)


def test_pyspark_is_given_no_setting_of_which_it_would_make_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts Java with what stands in the environment, and nothing of it is a setting."""
    seen: list[tuple[object, str, dict[str, str]]] = []

    def launch_gateway(conf: object, how: object) -> None:
        told = os.environ[SUBMIT_VARIABLE]
        seen.append((conf, told, read_properties((tmp_path / "spark.properties").read_text())))
        raise PySparkRuntimeError("JAVA_GATEWAY_EXITED", {})

    monkeypatch.setattr(java_gateway, "launch_gateway", launch_gateway)
    with pytest.raises(session.SessionError):
        session._start("app", SETTINGS, None, None, tmp_path)
    ((conf, told, written),) = seen
    assert conf is None
    assert "hUnter2" not in told
    assert written == SETTINGS | {"spark.app.name": "app"}
