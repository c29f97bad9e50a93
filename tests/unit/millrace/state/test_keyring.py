"""Where state's keys are, what is refused, and that no key is ever shown."""

from __future__ import annotations

import builtins
import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.config import app as config_app
from millrace.cli.keygen import app as keygen_app
from millrace.errors import UserError
from millrace.runtime import doctor
from millrace.runtime.contract import CONTRACT_FILE, ContractMismatch, check_contract
from millrace.runtime.doctor import Machine
from millrace.runtime.job import state_conf
from millrace.runtime.redaction import is_secret
from millrace.runtime.settings import AppSettings, load_settings
from millrace.state.keyring import (
    KEY_FILE_CONF,
    KEYS_VARIABLE,
    KeyReference,
    Keyring,
    StateKeyError,
    configured_keys,
    generate_key,
    key_id,
    parse_keys,
    read_ring,
    rotate_key_file,
    write_key_file,
)


def ids_of(*keys: str) -> tuple[str, ...]:
    return tuple(key_id(parse_keys(key)[0]) for key in keys)


@pytest.fixture(autouse=True)
def _no_keys_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)


class TestText:
    def test_a_file_has_a_key_per_line_and_comments(self) -> None:
        one, two, three = generate_key(), generate_key(), generate_key()
        text = f"# made in May\n{one}\n\n  {two}  # the one before\n{three},"
        assert Keyring(parse_keys(text)).ids == ids_of(one, two, three)

    @pytest.mark.parametrize("text", ["", "\n \n", "# nothing\n"])
    def test_a_text_without_a_key_is_refused(self, text: str) -> None:
        with pytest.raises(StateKeyError, match="the file k has no key: make one with `millrace keygen`"):
            parse_keys(text, where="the file k")

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda key: key[:-1],
            lambda key: key + "A",
            lambda key: key.removeprefix("millrace-key:"),
            lambda key: key.replace("millrace", "milrace"),
            lambda key: key[:-3] + "é§",
            lambda key: key[:20] + "!" + key[21:],
            lambda key: "hunter2",
        ],
    )
    def test_what_is_no_key_is_refused_without_being_shown(self, spoil: Any) -> None:
        word = spoil(generate_key())
        with pytest.raises(StateKeyError, match="line 2 of the text is not a key") as caught:
            parse_keys(f"{generate_key()}\n{word}\n")
        assert word.removeprefix("millrace-key:")[:8] not in str(caught.value)

    def test_a_key_that_stands_there_twice_is_refused(self) -> None:
        key = generate_key()
        with pytest.raises(StateKeyError, match="twice"):
            Keyring(parse_keys(f"{key} {generate_key()} {key}"))

    @pytest.mark.parametrize("keys", [[], [b"short"], [b"x" * 32, b""]])
    def test_a_ring_needs_whole_keys(self, keys: list[bytes]) -> None:
        with pytest.raises(StateKeyError, match="32 bytes"):
            Keyring(keys)

    def test_generated_keys_are_all_different(self) -> None:
        assert len(set(ids_of(*(generate_key() for _ in range(100))))) == 100


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def missing(name: str, *args: Any, **named: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(f"No module named '{name}'")
        return found(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(StateKeyError, match=r"pip install 'millrace\[encryption\]'"):
        Keyring(parse_keys(generate_key()))


class TestConfigured:
    def test_without_any_state_is_kept_in_clear(self) -> None:
        assert configured_keys(None, {}) is configured_keys("", {KEYS_VARIABLE: ""}) is None

    def test_keys_of_a_file_are_found_by_their_ids(self, tmp_path: Path) -> None:
        one, two = generate_key(), generate_key()
        (tmp_path / "keys").write_text(f"{one}\n{two}\n")
        reference = configured_keys(tmp_path / "keys", {})
        assert reference == KeyReference(str(tmp_path / "keys"), ids_of(one, two))
        assert reference.ring().ids == ids_of(one, two)

    def test_a_relative_path_is_made_absolute_for_the_workers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_key_file(tmp_path / "keys")
        monkeypatch.chdir(tmp_path)
        reference = configured_keys("keys", {})
        assert reference is not None
        assert reference.file == str(tmp_path / "keys")

    def test_keys_of_the_environment_are_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = generate_key(), generate_key()
        monkeypatch.setenv(KEYS_VARIABLE, f"{one},{two}")
        reference = configured_keys(None)
        assert reference == KeyReference(None, ids_of(one, two))
        assert reference.ring().ids == ids_of(one, two)

    def test_two_places_are_refused(self, tmp_path: Path) -> None:
        write_key_file(tmp_path / "keys")
        with pytest.raises(StateKeyError, match="configured twice"):
            configured_keys(tmp_path / "keys", {KEYS_VARIABLE: generate_key()})

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
        for name, why in (
            ("none", "No such file"),
            (".", "Is a directory"),
            ("binary", "not a file of keys"),
        ):
            with pytest.raises(StateKeyError, match=f"{tmp_path}.*{why}"):
                configured_keys(tmp_path / name, {})

    def test_a_reference_holds_no_key(self, tmp_path: Path) -> None:
        key = generate_key()
        (tmp_path / "keys").write_text(key)
        reference = configured_keys(tmp_path / "keys", {})
        secret = key.removeprefix("millrace-key:")
        assert secret not in repr(reference)
        assert parse_keys(key)[0].hex() not in repr(reference)


class TestOnAnotherMachine:
    def test_other_keys_are_refused(self, tmp_path: Path) -> None:
        here, there = generate_key(), generate_key()
        (tmp_path / "keys").write_text(there)
        with pytest.raises(StateKeyError, match=f"does not have key {ids_of(here)[0]}"):
            KeyReference(str(tmp_path / "keys"), ids_of(here)).ring()

    def test_the_driver_says_which_key_seals(self, tmp_path: Path) -> None:
        """Also while the machines' files are being replaced one after the other."""
        old, new = generate_key(), generate_key()
        (tmp_path / "keys").write_text(f"{new}\n{old}\n")
        assert KeyReference(str(tmp_path / "keys"), ids_of(old)).ring().ids == ids_of(old)

    def test_a_variable_that_is_not_set_there_is_named(self) -> None:
        with pytest.raises(StateKeyError, match=f"{KEYS_VARIABLE} is not set on this machine"):
            KeyReference(None, ("00000000",)).ring()

    def test_a_file_that_was_put_right_is_read_again(self, tmp_path: Path) -> None:
        key = generate_key()
        reference = KeyReference(str(tmp_path / "keys"), ids_of(key))
        with pytest.raises(StateKeyError, match="cannot be read"):
            reference.ring()
        (tmp_path / "keys").write_text(key)
        assert reference.ring() is reference.ring()


class TestFiles:
    def test_a_new_file_is_for_its_owner_only(self, tmp_path: Path) -> None:
        write_key_file(tmp_path / "keys")
        assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600
        assert len(read_ring(tmp_path / "keys").ids) == 1

    def test_a_file_that_is_there_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("precious")
        with pytest.raises(StateKeyError, match="is there already"):
            write_key_file(tmp_path / "keys")
        assert (tmp_path / "keys").read_text() == "precious"

    def test_a_new_key_goes_before_the_others_and_the_rest_stays(self, tmp_path: Path) -> None:
        path, old = tmp_path / "keys", generate_key()
        path.write_text(f"# ours\n{old}\n")
        path.chmod(0o640)
        rotate_key_file(path)
        assert path.read_text().endswith(f"# ours\n{old}\n")
        assert read_ring(path).ids[1:] == ids_of(old)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert [p.name for p in tmp_path.iterdir()] == ["keys"]

    def test_a_file_of_something_else_is_not_rotated(self, tmp_path: Path) -> None:
        (tmp_path / "notes").write_text("dear diary")
        with pytest.raises(StateKeyError, match="is not a key"):
            rotate_key_file(tmp_path / "notes")
        assert (tmp_path / "notes").read_text() == "dear diary"

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StateKeyError, match="none/keys cannot be written: No such file"):
            write_key_file(tmp_path / "none" / "keys")


class TestCommand:
    def test_a_key_is_printed(self) -> None:
        result = CliRunner().invoke(keygen_app, [])
        assert len(parse_keys(result.stdout)) == 1

    def test_files_are_made_rotated_and_listed_by_ids_alone(self, tmp_path: Path) -> None:
        path = str(tmp_path / "keys")
        made, turned, listed = (
            CliRunner().invoke(keygen_app, [option, path]) for option in ("--out", "--rotate", "--ids")
        )
        new, old = read_ring(path).ids
        assert f"key {old}" in made.stdout
        assert listed.stdout.split() == [new, "encrypts", old, "decrypts"]
        assert turned.stdout.endswith(listed.stdout)
        assert "millrace-key" not in made.stdout + turned.stdout + listed.stdout

    def test_one_thing_at_a_time(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(keygen_app, ["--out", str(tmp_path / "a"), "--ids", str(tmp_path / "a")])
        assert isinstance(result.exception, UserError)
        assert list(tmp_path.iterdir()) == []


class TestSettings:
    def test_the_file_is_a_setting_and_the_session_gets_its_path_only(self, tmp_path: Path) -> None:
        write_key_file(tmp_path / "keys")
        overrides = [f"state.encryption.key_file={tmp_path / 'keys'}"]
        settings = load_settings(AppSettings, app="demo", overrides=overrides, env={})
        assert state_conf(settings) == {KEY_FILE_CONF: str(tmp_path / "keys")}

    def test_without_keys_the_session_gets_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = load_settings(AppSettings, app="demo", env={})
        assert state_conf(settings) == {}
        monkeypatch.setenv(KEYS_VARIABLE, generate_key())
        assert state_conf(settings) == {}

    def test_config_show_shows_the_path_and_no_key(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = generate_key()
        (tmp_path / "keys").write_text(key)
        for arguments in (["--format", "json", "--origin"], ["--yaml"], []):
            monkeypatch.setenv("MILLRACE__STATE__ENCRYPTION__KEY_FILE", str(tmp_path / "keys"))
            monkeypatch.setenv(KEYS_VARIABLE, key)
            result = CliRunner().invoke(config_app, ["show", *arguments])
            assert result.exit_code == 0
            assert str(tmp_path / "keys") in result.stdout
            assert key.removeprefix("millrace-key:") not in result.stdout

    def test_the_variable_is_masked_wherever_options_are_shown(self) -> None:
        assert is_secret(KEYS_VARIABLE)
        assert is_secret(f"spark.executorEnv.{KEYS_VARIABLE}")


class TestDoctor:
    def finding(self, key_file: Path | None, env: dict[str, str]) -> Any:
        machine = Machine(env=env, key_file=None if key_file is None else str(key_file))
        return doctor._guarded("state keys", doctor._state_keys, machine)

    def test_clear_state_is_told(self) -> None:
        assert self.finding(None, {}).found == "none configured: state is kept in clear, with checksums"

    def test_keys_are_counted_and_the_current_one_named(self, tmp_path: Path) -> None:
        write_key_file(tmp_path / "keys")
        rotate_key_file(tmp_path / "keys")
        found = self.finding(tmp_path / "keys", {})
        current = read_ring(tmp_path / "keys").ids[0]
        assert (found.status, found.found) == ("ok", f"2, {current} encrypts (AES-256-GCM)")

    def test_a_file_for_everyone_is_a_warning(self, tmp_path: Path) -> None:
        write_key_file(tmp_path / "keys")
        (tmp_path / "keys").chmod(0o644)
        found = self.finding(tmp_path / "keys", {})
        assert (found.status, found.advice) == ("warning", f"run: chmod o= {tmp_path / 'keys'}")

    def test_keys_that_cannot_be_used_are_broken(self, tmp_path: Path) -> None:
        assert self.finding(tmp_path / "none", {}).status == "broken"
        assert self.finding(None, {KEYS_VARIABLE: "hunter2"}).status == "broken"
        assert "hunter2" not in str(self.finding(None, {KEYS_VARIABLE: "hunter2"}))


def contract(*keys: str) -> dict[str, Any]:
    made: dict[str, Any] = {"process": "Balance", "states": {}}
    return made | ({"encryption": {"cipher": "AES-256-GCM", "keys": list(keys)}} if keys else {})


def kept_keys(folder: Path) -> Any:
    return json.loads((folder / CONTRACT_FILE).read_text()).get("encryption", {}).get("keys")


class TestContract:
    def test_of_the_configured_keys_the_one_that_writes_is_recorded(self, tmp_path: Path) -> None:
        check_contract(tmp_path, contract("new", "old"))
        assert kept_keys(tmp_path) == ["new"]

    def test_a_new_key_is_recorded_before_those_that_wrote(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        incarnation = check_contract(tmp_path, contract("a"))
        for keys, recorded in (
            (("b", "a"), ["b", "a"]),
            (("b", "a", "unused"), ["b", "a"]),
            (("a", "b"), ["a", "b"]),
            (("c", "b", "a"), ["c", "a", "b"]),
        ):
            with caplog.at_level(logging.WARNING):
                assert check_contract(tmp_path, contract(*keys)) == incarnation
            assert kept_keys(tmp_path) == recorded
        assert caplog.records == []

    @pytest.mark.parametrize(
        ("before", "now", "told"),
        [
            ((), ("a",), "is not encrypted, and state keys are configured"),
            (("a",), (), r"is encrypted with key a: configure it with state\.encryption\.key_file or"),
            (("a",), ("b",), "is encrypted with key a, and the configured keys are b: add what is missing"),
            (("a",), ("b", "c"), "encrypted with key a, and the configured keys are b, c"),
        ],
    )
    def test_keys_that_do_not_fit_are_refused_and_nothing_changes(
        self, tmp_path: Path, before: tuple[str, ...], now: tuple[str, ...], told: str
    ) -> None:
        check_contract(tmp_path, contract(*before))
        kept = (tmp_path / CONTRACT_FILE).read_bytes()
        with pytest.raises(ContractMismatch, match=told):
            check_contract(tmp_path, contract(*now))
        assert (tmp_path / CONTRACT_FILE).read_bytes() == kept

    def test_a_key_that_wrote_once_is_needed_until_the_state_is_written_anew(self, tmp_path: Path) -> None:
        check_contract(tmp_path, contract("a"))
        check_contract(tmp_path, contract("b", "a"))
        with pytest.raises(ContractMismatch, match="encrypted with key a, and the configured keys are b"):
            check_contract(tmp_path, contract("b"))

    def test_another_cipher_is_refused(self, tmp_path: Path) -> None:
        check_contract(tmp_path, contract("a"))
        other = contract("a")
        other["encryption"]["cipher"] = "ROT-13"
        with pytest.raises(ContractMismatch, match="encrypted with AES-256-GCM, this is ROT-13"):
            check_contract(tmp_path, other)
