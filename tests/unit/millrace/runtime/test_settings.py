"""Settings come from four sources in a fixed order; what is wrong is named, what is secret is never shown."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, ValidationError
from typer.testing import CliRunner

from millrace.cli.config import app as config_app
from millrace.runtime.redaction import is_secret, redact_text
from millrace.runtime.secrets import OptionMap
from millrace.runtime.settings import (
    AppSettings,
    Duration,
    KafkaSettings,
    SettingsError,
    SparkSettings,
    StorageSettings,
    StreamSettings,
    _tell_once,
    load_settings,
    origins,
    redacted,
)

SECRET = "hunter2-correct-horse"  # noqa: S105


class WindowedSettings(AppSettings):
    """An app's own settings."""

    stream: StreamSettings = StreamSettings(out_of_orderness=timedelta(seconds=30))
    threshold: float = Field(default=3.0, gt=0)
    idle_after: Duration = timedelta(hours=1)
    regions: list[str] = Field(default_factory=list)
    api_token: SecretStr | None = None


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(
    *overrides: str, yaml: str | None = None, env: dict[str, str] | None = None, app: str = "windowed"
) -> WindowedSettings:
    if yaml is not None:
        Path("millrace.yaml").write_text(yaml, encoding="utf-8")
    return load_settings(WindowedSettings, app=app, overrides=overrides, env=env or {})


def problems(*overrides: str, yaml: str | None = None, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*overrides, yaml=yaml, env=env)
    assert caught.value.exit_code == 2
    return caught.value.problems


class TestFormerNames:
    FORMER = "stream.driver_records is the former name of stream.driver_write_max_records"

    def test_a_former_name_is_taken_from_every_source(self, tmp_path: Path) -> None:
        yaml = "windowed:\n  stream:\n    driver_records: 7\n"
        found = load(yaml=yaml)
        assert found.stream.driver_write_max_records == 7
        assert origins(found)["stream.driver_write_max_records"] == "millrace.yaml:3"
        assert not any(key.endswith(".driver_records") for key in origins(found))
        env = {"MILLRACE__STREAM__DRIVER_RECORDS": "8"}
        assert load(yaml=yaml, env=env).stream.driver_write_max_records == 8
        found = load("stream.driver_records=9", yaml=yaml, env=env)
        assert found.stream.driver_write_max_records == 9
        assert origins(found)["stream.driver_write_max_records"] == "--set stream.driver_records"

    def test_a_later_source_wins_by_either_name(self) -> None:
        yaml = "windowed: {stream: {driver_write_max_records: 7}}"
        assert load("stream.driver_records=9", yaml=yaml).stream.driver_write_max_records == 9
        yaml = "windowed: {stream: {driver_records: 7}}"
        assert load("stream.driver_write_max_records=9", yaml=yaml).stream.driver_write_max_records == 9

    def test_it_is_told_once_where_it_stands_and_what_to_say(self, caplog: pytest.LogCaptureFixture) -> None:
        _tell_once.cache_clear()
        for _ in range(2):
            load("stream.driver_write_max_records=1", yaml="windowed:\n  stream: {driver_records: 7}\n")
        assert caplog.messages == [f"millrace.yaml:2: {self.FORMER}: use that"]

    def test_what_is_set_by_both_names_in_one_place_is_refused(self) -> None:
        yaml = "windowed:\n  stream:\n    driver_write_max_records: 1\n    driver_records: 7\n"
        assert problems(yaml=yaml) == [f"millrace.yaml:4: {self.FORMER}, which is set, too: leave one out"]

    def test_a_value_that_cannot_be_used_is_told_by_todays_name_where_it_stands(self) -> None:
        (line,) = problems("stream.driver_records=-1")
        assert line.startswith("--set stream.driver_records: stream.driver_write_max_records: ")

    def test_what_is_nearest_to_an_unknown_key_is_a_name_of_today(self) -> None:
        (line,) = problems("stream.driver_record=1")
        assert line.endswith("did you mean 'stream.driver_write_max_records'?")


class TestPrecedence:
    YAML = """
common:
  stream: {max_offsets_per_trigger: 1, trigger_interval: 1s, max_future_skew: 1s, starting_offsets: latest}
windowed:
  stream:
    max_offsets_per_trigger: 2
    trigger_interval: 2s
    max_future_skew: 2s
"""
    ENV = {  # noqa: RUF012
        "MILLRACE__STREAM__MAX_OFFSETS_PER_TRIGGER": "3",
        "MILLRACE__STREAM__TRIGGER_INTERVAL": "3s",
    }

    def test_each_source_wins_over_the_ones_before(self) -> None:
        stream = load("stream.max_offsets_per_trigger=4", yaml=self.YAML, env=self.ENV).stream

        assert stream.max_offsets_per_trigger == 4
        assert stream.trigger_interval == timedelta(seconds=3)
        assert stream.max_future_skew == timedelta(seconds=2)
        assert stream.starting_offsets == "latest"
        assert stream.out_of_orderness == timedelta(seconds=30)

    def test_every_value_knows_where_it_came_from(self) -> None:
        places = origins(load("stream.max_offsets_per_trigger=4", yaml=self.YAML, env=self.ENV))

        assert places["stream.max_offsets_per_trigger"] == "--set stream.max_offsets_per_trigger"
        assert places["stream.trigger_interval"] == "MILLRACE__STREAM__TRIGGER_INTERVAL"
        assert places["stream.max_future_skew"] == "millrace.yaml:8"
        assert places["stream.starting_offsets"] == "millrace.yaml:3"
        assert places["stream.out_of_orderness"] == "default"

    def test_without_any_source_the_defaults_suit_a_laptop(self) -> None:
        settings = load()

        assert settings.kafka.bootstrap is None
        assert settings.spark.master == "local[*]"
        assert settings.spark.driver_memory == "1g"
        assert settings.storage.root == ".millrace/windowed"
        assert set(origins(settings).values()) == {"default"}

    def test_one_key_of_a_section_keeps_the_apps_own_default_of_another(self) -> None:
        assert load("stream.trigger_interval=1s").stream.out_of_orderness == timedelta(seconds=30)

    def test_making_settings_by_hand_reads_no_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOG_LEVEL", "ERROR")
        monkeypatch.setenv("MILLRACE__LOG_LEVEL", "ERROR")

        assert WindowedSettings().log_level == "INFO"

    def test_the_process_environment_is_the_default_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLRACE__LOG_LEVEL", "error")

        assert load_settings(AppSettings, app="x").log_level == "ERROR"

    def test_the_conventional_bootstrap_variable_is_a_fallback(self) -> None:
        both = {"KAFKA_BOOTSTRAP_SERVERS": "a:1", "MILLRACE__KAFKA__BOOTSTRAP": "b:2"}

        assert load(env={"KAFKA_BOOTSTRAP_SERVERS": "a:1"}).kafka.bootstrap == "a:1"
        assert load(env=both).kafka.bootstrap == "b:2"
        assert load("kafka.bootstrap=c:3", env=both).kafka.bootstrap == "c:3"

    def test_an_empty_override_takes_an_optional_value_away(self) -> None:
        assert load("kafka.bootstrap=", env={"KAFKA_BOOTSTRAP_SERVERS": "a:1"}).kafka.bootstrap is None

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        assert load(env={"MILLRACE__LOG_LEVEL": "", "KAFKA_BOOTSTRAP_SERVERS": ""}).log_level == "INFO"


class TestFile:
    def test_a_named_file_wins_over_the_variable_and_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "millrace.yaml").write_text("common: {log_level: ERROR}")
        (tmp_path / "variable.yaml").write_text("common: {log_level: WARNING}")
        (tmp_path / "named.yaml").write_text("common: {log_level: DEBUG}")
        env = {"MILLRACE_CONFIG": "variable.yaml"}

        assert load().log_level == "ERROR"
        assert load(env=env).log_level == "WARNING"
        assert load_settings(AppSettings, app="x", config=Path("named.yaml"), env=env).log_level == "DEBUG"

    def test_a_named_file_that_is_missing_is_an_error(self) -> None:
        assert problems(env={"MILLRACE_CONFIG": "gone.yaml"}) == [
            "settings file gone.yaml not found (named by MILLRACE_CONFIG)"
        ]

    def test_an_empty_file_and_empty_sections_set_nothing(self) -> None:
        assert set(origins(load(yaml="")).values()) == {"default"}
        assert set(origins(load(yaml="common:\nwindowed:\n  kafka:\n")).values()) == {"default"}

    @pytest.mark.parametrize(
        ("yaml", "message"),
        [
            ("just text", "millrace.yaml:1: write sections"),
            ("common: 5", "millrace.yaml:1: section 'common' must hold settings"),
            ("common:\n  kafka: 5", "millrace.yaml:2: kafka is a section"),
            ("common:\n  log_level: INFO\n  log_level: DEBUG", "millrace.yaml:3: key written twice"),
            ("common:\n  a: [", "millrace.yaml:2: "),
            ("kafka: {bootstrap: a}", "millrace.yaml:1: 'kafka' stands at the top: put it under 'common:'"),
            ("comon: {log_level: INFO}", "millrace.yaml:1: unknown section 'comon': did you mean 'common'?"),
            ("common:\n  threshold: 1", "it belongs to one app only, write it in that app's section"),
            ("common: &x\n  kafka: *x", "nested too deeply"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_line(self, yaml: str, message: str) -> None:
        assert message in problems(yaml=yaml)[0]

    def test_a_file_that_is_not_text_is_one_clear_line(self, tmp_path: Path) -> None:
        (tmp_path / "millrace.yaml").write_bytes(b"\xff\xfe\x00")

        assert problems() == ["cannot read millrace.yaml: not UTF-8 text"]


class TestUnknownKeys:
    def test_in_the_file(self) -> None:
        assert problems(yaml="windowed:\n  kafka:\n    bootstap: a:1\n") == [
            "millrace.yaml:3: unknown key 'kafka.bootstap': did you mean 'kafka.bootstrap'?"
        ]

    def test_in_the_environment(self) -> None:
        assert problems(env={"MILLRACE__KAFKA__BOOTSTAP": "a:1"}) == [
            "MILLRACE__KAFKA__BOOTSTAP: unknown key 'kafka.bootstap': "
            "did you mean MILLRACE__KAFKA__BOOTSTRAP?"
        ]

    def test_on_the_command_line(self) -> None:
        assert problems("treshold=1") == ["--set treshold: unknown key 'treshold': did you mean 'threshold'?"]

    def test_a_key_without_its_section_is_found(self) -> None:
        assert problems("bootstrap=a:1") == [
            "--set bootstrap: unknown key 'bootstrap': did you mean 'kafka.bootstrap'?"
        ]

    def test_nothing_alike_points_to_the_list(self) -> None:
        assert problems("zzz=1") == ["--set zzz: unknown key 'zzz': `millrace config show` lists every key"]

    def test_an_override_without_a_value_says_how_to_write_it(self) -> None:
        assert problems("threshold")[0].startswith("--set threshold: write KEY=VALUE")

    def test_other_variables_of_this_project_are_none_of_its_business(self) -> None:
        assert load(env={"MILLRACE_CACHE": "/x", "MILLRACE_TRACEBACK": "1"}) == load()

    def test_all_problems_are_reported_together(self) -> None:
        found = problems("a=1", "threshold=-1", env={"MILLRACE__B": "1"}, yaml="common: {c: 1}")

        assert [line.split(":")[0] for line in found] == [
            "millrace.yaml",
            "MILLRACE__B",
            "--set a",
            "--set threshold",
        ]


class TestValues:
    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("stream.trigger_interval=soon", "stream.trigger_interval: 'soon' is not a duration"),
            ("spark.driver_memory=lots", "spark.driver_memory: 'lots' is not a size"),
            ("spark.master=cluster", "spark.master: write local[*]"),
            ("spark.key_groups=0", "spark.key_groups: Input should be greater than or equal to 1"),
            ("spark.conf.shuffle=1", "shuffle: Spark's own settings start with 'spark.'"),
            ("kafka.bootstrap=host", "kafka.bootstrap: address 1 is not host:port"),
            ("kafka.bootstrap=a:1,b", "kafka.bootstrap: address 2 is not host:port"),
            ("kafka.options.kafka.ssl=1", "write it without 'kafka.'"),
            ("kafka.options.auto.offset.reset=x", "set stream.starting_offsets instead"),
            ("kafka.options=[1]", "write a mapping"),
            ("kafka.options={", "not valid JSON at character 2"),
            ("stream.starting_offsets=middle", "Input should be 'earliest' or 'latest'"),
            ("stream.trigger_interval.x=1", "stream.trigger_interval"),
            ("threshold=many", "threshold: Input should be a valid number"),
            ("regions=north", "not valid JSON"),
        ],
    )
    def test_a_value_that_cannot_be_used_says_where_and_why(self, override: str, message: str) -> None:
        (problem, *_) = problems(override)
        key = override.partition("=")[0]
        assert problem.startswith(f"--set {key}: ")
        assert message in problem

    def test_the_usual_forms_are_read(self) -> None:
        settings = load(
            "idle_after=PT90S",
            "spark.driver_memory=2GB",
            'regions=["north", "south"]',
            "kafka.bootstrap=a:1,[::1]:2",
        )

        assert settings.idle_after == timedelta(seconds=90)
        assert settings.spark.driver_memory == "2g"
        assert settings.regions == ["north", "south"]
        assert settings.kafka.bootstrap == "a:1,[::1]:2"

    def test_loaded_settings_do_not_change(self) -> None:
        with pytest.raises(ValidationError):
            load().spark.master = "yarn"

    def test_places_under_the_root_are_absolute_files_or_uris(self, tmp_path: Path) -> None:
        assert load().storage.path("tables", "alerts") == str(tmp_path / ".millrace/windowed/tables/alerts")
        remote = StorageSettings(root="s3a://lake/fraud/")
        assert remote.path("tables", "alerts") == "s3a://lake/fraud/tables/alerts"
        assert remote.local_root is None
        assert StorageSettings(root="file:///data").local_root == Path("/data")


class TestClock:
    """What the watermark goes by."""

    def test_time_follows_arrival_the_furthest_partition_and_two_full_batches(self) -> None:
        stream = load().stream
        assert (stream.clock_skew, stream.follow, stream.full_batches) == (0, "furthest", 2)
        assert stream.source_idle_after is None

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("5 s", 5_000),
            ("-200ms", -200),
            ("-1 minute", -60_000),
            ("-1s 500ms", -1_500),
            (" -PT2S ", -2_000),
            ("250", 250),
            ("-250", -250),
            ("0", 0),
            ("off", None),
            (" off ", None),
        ],
    )
    def test_a_skew_is_a_duration_that_may_be_negative_or_off(self, written: str, read: int | None) -> None:
        assert load(f"stream.clock_skew={written}").stream.clock_skew == read
        assert load(env={"MILLRACE__STREAM__CLOCK_SKEW": written}).stream.clock_skew == read

    @pytest.mark.parametrize(
        ("written", "read"),
        [("off", None), ("'off'", None), ("-5s", -5_000), ("-5000", -5_000), ("7", 7), ("0", 0)],
    )
    def test_a_file_may_say_so_without_quotes(self, written: str, read: int | None) -> None:
        """YAML takes a bare `off` for false."""
        assert load(yaml=f"common:\n  stream:\n    clock_skew: {written}\n").stream.clock_skew == read

    def test_a_skew_may_be_given_as_a_timedelta(self) -> None:
        assert StreamSettings.model_validate({"clock_skew": timedelta(seconds=-3)}).clock_skew == -3_000
        assert StreamSettings.model_validate({"clock_skew": timedelta(seconds=3)}).clock_skew == 3_000

    @pytest.mark.parametrize("skew", [None, 0, 5_000, -200, -3_600_500])
    def test_a_skew_that_is_shown_is_read_back(self, skew: int | None) -> None:
        stream = StreamSettings.model_validate({"clock_skew": "off" if skew is None else skew})
        assert stream.clock_skew == skew
        shown = stream.model_dump(mode="json")["clock_skew"]
        assert load(f"stream.clock_skew={shown}").stream.clock_skew == skew

    @pytest.mark.parametrize("written", ["never", "--5s", "on", "-", "5 parsecs", "-0.5ms", "off 5s"])
    def test_a_skew_that_is_none_is_refused_where_it_stands(self, written: str) -> None:
        (problem,) = problems(f"stream.clock_skew={written}")
        assert problem.startswith("--set stream.clock_skew: ")

    @pytest.mark.parametrize("written", ["true", "[1]", "{a: 1}", "-0.5"])
    def test_a_file_that_says_something_else_is_told_so(self, written: str) -> None:
        (problem,) = problems(yaml=f"common:\n  stream:\n    clock_skew: {written}\n")
        assert "stream.clock_skew" in problem

    @pytest.mark.parametrize(
        "override",
        [
            "stream.full_batches=0",
            "stream.full_batches=-1",
            "stream.full_batches=two",
            "stream.follow=fastest",
            "stream.source_idle_after=-5s",
        ],
    )
    def test_what_makes_no_sense_is_refused_where_it_stands(self, override: str) -> None:
        (problem,) = problems(override)
        assert problem.startswith(f"--set {override.partition('=')[0]}: ")

    def test_the_slowest_partition_may_be_followed_for_a_while(self) -> None:
        stream = load(
            "stream.follow=slowest", "stream.source_idle_after=5 minutes", "stream.full_batches=4"
        ).stream
        assert (stream.follow, stream.full_batches) == ("slowest", 4)
        assert stream.source_idle_after == timedelta(minutes=5)


class TestOptionMaps:
    def test_options_of_all_sources_are_merged_key_by_key(self) -> None:
        options = load(
            "kafka.options.client.id=four",
            yaml="""
common:
  kafka: {options: {security.protocol: SSL, client.id: one, socket.timeout.ms: 30000}}
windowed:
  kafka:
    options:
      client.id: two
      enable: {sparse.connections: true}
""",
            env={
                "MILLRACE__KAFKA__OPTIONS__CLIENT_ID": "three",
                "MILLRACE__KAFKA__OPTIONS__SASL_USERNAME": "bob",
            },
        ).kafka.options

        assert options == {
            "security.protocol": "SSL",
            "client.id": "four",
            "socket.timeout.ms": "30000",
            "enable.sparse.connections": "true",
            "sasl.username": "bob",
        }

    def test_names_that_a_shell_cannot_write_come_as_json_or_as_they_stand(self) -> None:
        conf = load(
            env={
                "MILLRACE__SPARK__CONF": '{"spark.ui.showConsoleProgress": true, "spark.x_y": 1}',
                "MILLRACE__SPARK__CONF__spark.sql.ansi.enabled": "false",
            }
        )
        assert conf.spark.conf == {
            "spark.ui.showConsoleProgress": "true",
            "spark.x_y": "1",
            "spark.sql.ansi.enabled": "false",
        }

    def test_one_map_serves_both_kinds_of_clients(self) -> None:
        kafka = KafkaSettings(
            bootstrap="b:1",
            options=OptionMap(
                {
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": "SCRAM-SHA-512",
                    "sasl.username": "bob",
                    "sasl.password": 'a"b\\c',
                    "ssl.ca.location": "/ca.pem",
                }
            ),
        )

        assert kafka.client_options()["sasl.password"] == 'a"b\\c'
        assert "sasl.jaas.config" not in kafka.client_options()
        assert kafka.spark_options() == {
            "kafka.bootstrap.servers": "b:1",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="bob" password="a\\"b\\\\c";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": "/ca.pem",
        }

    def test_a_jaas_line_of_ones_own_goes_to_java_clients_only(self) -> None:
        kafka = KafkaSettings(options=OptionMap({"sasl.jaas.config": "X required;", "sasl.username": "u"}))

        assert kafka.spark_options() == {"kafka.sasl.jaas.config": "X required;"}
        assert kafka.client_options() == {"sasl.username": "u"}


class TestSecrets:
    ENV = {"MILLRACE__API_TOKEN": SECRET, "MILLRACE__KAFKA__OPTIONS__SASL_PASSWORD": SECRET}  # noqa: RUF012
    SETS = (
        f'kafka.options.sasl.jaas.config=X required password="{SECRET}";',
        f"kafka.options.ssl.key.password={SECRET}",
        f"spark.conf.spark.hadoop.fs.s3a.secret.key={SECRET}",
        f"spark.conf.spark.hadoop.fs.s3a.access.key={SECRET}",
        f"storage.root=s3a://key:{SECRET}@lake/tables",
    )

    def settings(self) -> WindowedSettings:
        return load(*self.SETS, env=self.ENV)

    def test_they_reach_the_clients(self) -> None:
        settings = self.settings()

        assert settings.kafka.client_options()["sasl.password"] == SECRET
        assert SECRET in settings.kafka.spark_options()["kafka.sasl.jaas.config"]
        assert settings.spark.conf["spark.hadoop.fs.s3a.secret.key"] == SECRET
        assert settings.api_token is not None
        assert settings.api_token.get_secret_value() == SECRET

    def test_they_survive_a_copy_to_another_process(self) -> None:
        settings = self.settings()

        for other in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))):  # noqa: S301
            assert other.kafka.options["sasl.password"] == SECRET
            assert SECRET not in repr(other.kafka.options)

    @pytest.mark.parametrize("form", ["repr", "str", "redacted", "origins", "json", "yaml", "plain"])
    def test_no_form_of_printing_shows_one(self, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = self.settings()
        # `storage.root` is the one plain text field among them: only the redacted forms clean it.
        safe = settings.model_copy(update={"storage": StorageSettings(root="x")})
        for key, value in self.ENV.items():
            monkeypatch.setenv(key, value)
        monkeypatch.delenv("MILLRACE__API_TOKEN")
        flags = [part for item in self.SETS for part in ("-s", item)]

        def cli(*more: str) -> str:
            result = CliRunner().invoke(config_app, ["show", "--origin", *more, *flags])
            assert result.exit_code == 0, result.output
            return result.output

        shown = {
            "repr": lambda: f"{safe!r} {safe.kafka!r} {safe.kafka.options!r} {safe.spark}",
            "str": lambda: f"{safe} {safe.kafka.options} {safe.model_dump()} {safe.model_dump_json()}",
            "redacted": lambda: json.dumps(redacted(settings)),
            "origins": lambda: str(origins(settings)),
            "json": lambda: cli("--format", "json"),
            "yaml": lambda: cli("--yaml"),
            "plain": lambda: cli(),
        }[form]()

        assert "sasl.password" in shown or "sasl" in shown
        assert SECRET not in shown

    @pytest.mark.parametrize(
        ("overrides", "env", "yaml"),
        [
            ((f"kafka.sasl.password={SECRET}",), {}, ""),
            ((f"sasl.password:{SECRET}",), {}, ""),
            ((SECRET,), {}, ""),
            ((f"kafka.options.sasl.password={SECRET}", "kafka.options.kafka.x=1"), {}, ""),
            ((f"kafka.bootstrap=bob:{SECRET}@host:1",), {}, ""),
            ((), {"MILLRACE__KAFKA__PASSWORD": SECRET}, ""),
            ((), {"MILLRACE__KAFKA__OPTIONS": f'{{"sasl.password": "{SECRET}"'}, ""),
            ((), {"MILLRACE__SPARK__CONF": f'{{"fs.secret": "{SECRET}"}}'}, ""),
            ((), {}, f"common:\n  kafka:\n    options: {{sasl.password: *{SECRET}}}"),
            ((), {}, f"common:\n  kafka:\n    options:\n      sasl.password: !{SECRET} x"),
            ((), {}, f'common:\n  kafka:\n    options:\n      sasl.password: "{SECRET}'),
            ((), {}, f"common:\n  kafka:\n    options:\n      sasl.password: [{SECRET}]"),
            ((), {}, f"windowed:\n  api_token: [{SECRET}]"),
        ],
    )
    def test_no_error_message_shows_one(
        self, overrides: tuple[str, ...], env: dict[str, str], yaml: str
    ) -> None:
        with pytest.raises(SettingsError) as caught:
            load(*overrides, env=env, yaml=yaml)

        chain: BaseException | None = caught.value
        while chain is not None:
            assert SECRET not in str(chain)
            assert SECRET not in repr(chain)
            # What a traceback would print, it must not be able to.
            chain = None if chain.__suppress_context__ else chain.__context__

    def test_a_section_made_by_hand_hides_its_input_too(self) -> None:
        with pytest.raises(ValidationError) as caught:
            SparkSettings(conf=OptionMap({"fs.secret": SECRET}))
        assert SECRET not in str(caught.value)

    @pytest.mark.parametrize(
        "name",
        ["sasl.password", "sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "ssl.key.pem",
         "api_key", "spark.hadoop.fs.s3a.access.key", "fs.azure.account.accessKey", "db_passwd",
         "basic.auth.user.info", "AWS_SESSION_TOKEN", "private.key", "credentials"],
    )  # fmt: skip
    def test_secret_names_are_known(self, name: str) -> None:
        assert is_secret(name)

    @pytest.mark.parametrize(
        "name",
        ["sasl.username", "sasl.mechanism", "ssl.ca.location", "spark.sql.shuffle.partitions", "client.id",
         "sasl.oauthbearer.token.endpoint.url", "fs.s3a.aws.credentials.provider", "spark.key_groups"],
    )  # fmt: skip
    def test_names_that_help_to_find_a_mistake_are_shown(self, name: str) -> None:
        assert not is_secret(name)

    @pytest.mark.parametrize(
        "text",
        [
            f"s3a://key:{SECRET}@lake",
            f'required username="bob" password="{SECRET}";',
            f"sasl.password={SECRET}, x=1",
            f"{{ssl.key.password: '{SECRET}'}}",
        ],
    )
    def test_free_text_is_cleaned(self, text: str) -> None:
        assert SECRET not in redact_text(text)
        assert "********" in redact_text(text)


class TestCommand:
    def invoke(self, *args: str) -> str:
        result = CliRunner().invoke(config_app, list(args))
        assert result.exit_code == 0, result.output
        return result.output

    def test_show_names_the_origin_of_every_value(self) -> None:
        lines = self.invoke("show", "--origin", "-s", "log_level=debug").splitlines()

        assert [line.split() for line in lines if line.startswith("log_level")] == [
            ["log_level", "DEBUG", "--set", "log_level"]
        ]

    def test_what_show_prints_as_yaml_can_be_read_back(self, tmp_path: Path) -> None:
        text = self.invoke(
            "show", "--yaml", "-s", "stream.trigger_interval=90s", "-s", "spark.conf.spark.a=b"
        )
        (tmp_path / "copy.yaml").write_text(text)

        again = self.invoke("show", "--yaml", "--config", "copy.yaml")

        assert again == text

    def test_show_as_json_is_json(self) -> None:
        shown = json.loads(self.invoke("show", "--format", "json", "--origin"))

        assert shown["settings"]["spark"]["master"] == "local[*]"
        assert shown["origins"]["spark.master"] == "default"


def test_a_key_of_a_mapping_that_is_set_by_itself_leaves_the_others(tmp_path: Path) -> None:
    """By each source: what is named is replaced, and a mapping that is written as a whole replaces all."""
    file = tmp_path / "millrace.yaml"
    file.write_text("common: {storage: {retention: {alerts: 1d, late: 2d}}}\n")
    env = {"MILLRACE__STORAGE__RETENTION__LATE": "3d", "MILLRACE__STORAGE__RETENTION__MORE": "4d"}
    sets = ["storage.retention.most=5d", "storage.retention.more=6d"]

    def kept(*more: str) -> dict[str, int]:
        found = load_settings(WindowedSettings, app="x", config=file, env=env, overrides=[*sets, *more])
        for name, at in origins(found).items():
            assert not name.startswith("storage.retention.") or at != "default"
        return {name: of.days for name, of in found.storage.retention.items()}

    assert kept() == {"alerts": 1, "late": 3, "more": 6, "most": 5}
    assert kept('storage.retention={"only": "7d"}') == {"only": 7}
    assert kept("storage.retention=", "storage.retention.again=8d") == {"again": 8}
    with pytest.raises(SettingsError, match=r"storage\.retention\.most"):
        kept("storage.retention.most=soon")
