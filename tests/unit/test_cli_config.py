"""The command: `refstore config`, and what every command shares: options, answers, errors, exit codes."""

from __future__ import annotations

import errno
import importlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
import typer

from refstore import __version__, cli, errors
from refstore.cli import common, options, plain_values
from refstore.configuration import logs
from refstore.configuration.settings import OPTIONS, SETTINGS, LogSettings
from refstore.core import event_log
from refstore.records.branch_records import StoredTag

SECRET = "s" * 32


def commands_with_values() -> list[tuple[tuple[str, ...], list[Any]]]:
    """Each command that takes a bounded number of words, with its own options that take a value."""
    shared = {"data", "kv", "objects", "config", "log_level", "log_format", "output"}
    found: list[tuple[tuple[str, ...], list[Any]]] = []

    def add(command: Any, words: tuple[str, ...]) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            add(inner, (*words, name))
        takes_any = any(each.nargs == -1 for each in command.params)
        values = [
            each for each in command.params
            if each.param_type_name == "option" and not each.is_flag and each.name not in shared and not each.hidden
        ]  # fmt: skip
        if values and not takes_any and not hasattr(command, "commands"):
            found.append((words, values))

    for name in cli.COMMANDS:
        add(cli.import_command(name), (name,))
    return found


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def refstore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The command, run in this process, in an empty directory with an empty environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("REFSTORE_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))

    def run(*args: str) -> Outcome:
        code = cli.run(args)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """A command `probe` that does what it is given."""

    def install(do) -> None:
        app = typer.Typer()

        @app.command("probe")
        def probe(ctx: typer.Context) -> None:
            do(ctx)

        module = type(sys)(cli.module_of("probe"))
        module.app = app
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "probe": "Probe."})

    return install


class TestConfig:
    def test_a_table_of_every_setting(self, refstore, tmp_path: Path) -> None:
        outcome = refstore("config", "--data", "/srv/lake")
        lines = outcome.out.splitlines()
        assert outcome.code == 0
        assert lines[0].split() == ["setting", "value", "origin"]
        assert [line.split()[0] for line in lines[1:]] == ["config", *SETTINGS]
        assert lines[1].split(maxsplit=1) == ["config", f"there is no {tmp_path / 'home'}/refstore/refstore.toml"]
        assert lines[2].split(maxsplit=2) == ["data", "/srv/lake", "command line"]
        assert outcome.err == ""

    def test_json(self, refstore) -> None:
        rows = json.loads(refstore("config", "--json", "--kv", "redis://u:pw@h", "--objects", "s3://b").out)
        assert rows[1:4] == [
            {"setting": "data", "value": None, "origin": "default"},
            {"setting": "kv", "value": "redis://u:***@h", "origin": "command line"},
            {"setting": "objects", "value": "s3://b", "origin": "command line"},
        ]

    def test_where_it_looks(self, refstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The whole chain, through the command: the user's file, a variable, a flag; never the working folder."""

        def seen(*args: str) -> tuple[str, str]:
            rows = {row["setting"]: row for row in json.loads(refstore("config", "--json", *args).out)}
            in_force.append((rows["config"]["value"], rows["config"]["origin"]))
            return rows["log.level"]["value"], rows["log.level"]["origin"]

        in_force: list[tuple[str | None, str]] = []
        here = tmp_path / "refstore.toml"
        here.write_text("[log]\nlevel = 'warning'\n")
        here.chmod(0o600)
        own = tmp_path / "home" / "refstore" / "refstore.toml"
        assert seen() == ("info", "default")
        own.parent.mkdir(0o700, parents=True)
        own.write_text("[log]\nlevel = 'debug'\n")
        own.chmod(0o600)
        assert seen() == ("debug", str(own))
        monkeypatch.setenv("REFSTORE_CONFIG", str(here))
        assert seen() == ("warning", str(here))
        assert seen("--config", str(own)) == ("debug", str(own))
        monkeypatch.setenv("REFSTORE_LOG_LEVEL", "error")
        assert seen() == ("error", "environment REFSTORE_LOG_LEVEL")
        assert seen("--log-level", "info") == ("info", "command line")
        by_variable = (str(here), "environment REFSTORE_CONFIG")
        assert in_force == [
            (None, f"there is no {own}"),
            (str(own), "configuration directory"),
            by_variable,
            (str(own), "command line"),
            by_variable,
            by_variable,
        ]

    @pytest.mark.parametrize("place", ["the user's", "--config"])
    def test_a_folder_that_it_may_not_look_into(
        self, refstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        """What may stand there must not be taken for nothing: other durations would be in force."""
        shut = tmp_path / "home" / "refstore" if place == "the user's" else tmp_path / "other" / "refstore.toml"
        opened = os.open

        def open_(path: str | Path, *how: Any, **more: Any) -> int:
            if path == shut:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return opened(path, *how, **more)

        monkeypatch.setattr(os, "open", open_)
        outcome = refstore("config", *(["--config", str(shut)] if place == "--config" else []))
        assert outcome.code == 2
        assert f"{shut} cannot be accessed (Permission denied)" in outcome.err

    def test_no_secret_is_shown(self, refstore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REFSTORE_SIGNING_KEYS", f"k1:{SECRET}")
        for args in (
            ("config",),
            ("config", "--json"),
            ("config", "--kv", f"redis://:{SECRET}@h", "--objects", "s3://b"),
        ):
            outcome = refstore(*args)
            assert outcome.code == 0
            assert SECRET not in outcome.out + outcome.err
            assert "k1:***" in outcome.out

    def test_a_mistyped_variable_is_warned_of(self, refstore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REFSTORE_SAFETY_GRACES", "1s")
        outcome = refstore("config")
        assert (outcome.code, outcome.err) == (
            0,
            (
                "refstore: warning: REFSTORE_SAFETY_GRACES is not a setting and has no effect; did you mean "
                "REFSTORE_SAFETY_GRACE?\n"
            ),
        )


class TestOptions:
    @pytest.mark.parametrize(
        "args", [("--data", "/x", "config"), ("config", "--data", "/x"), ("--data", "/y", "config", "--data", "/x")]
    )
    def test_before_and_after_the_command(self, refstore, args: tuple[str, ...]) -> None:
        assert json.loads(refstore("--json", *args).out)[1]["value"] == "/x"

    @pytest.mark.parametrize("name", cli.COMMANDS)
    def test_every_command_takes_them_and_none_redefines_them(self, name: str) -> None:
        def check(command) -> None:
            given = [option for parameter in command.params for option in parameter.opts]
            assert len(given) == len(set(given)), f"{command.name} has an option of every command as its own"
            assert {"--data", "--kv", "--objects", "--config", "--log-level", "--json", "--debug"} <= set(given)
            for inner in getattr(command, "commands", {}).values():
                check(inner)

        check(cli.import_command(name))

    @pytest.mark.parametrize("name", cli.COMMANDS)
    def test_every_command_has_help_and_a_line_in_the_list(self, refstore, name: str) -> None:
        assert refstore(name, "--help").code == 0
        assert f"  {name} " in refstore("--help").out

    def test_a_group_is_loaded_as_one(self, refstore, monkeypatch: pytest.MonkeyPatch) -> None:
        app = typer.Typer()

        @app.command("here")
        def here(ctx: typer.Context) -> None:
            common.emit(ctx, {"data": str(common.settings_of(ctx).data)})

        @app.command("there")
        def there() -> None: ...

        module = type(sys)(cli.module_of("place"))
        module.app = app
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(cli, "COMMANDS", {"place": "Places."})
        assert json.loads(refstore("place", "--json", "here", "--data", "/x").out) == {"data": "/x"}
        assert refstore("place", "--data", "/x", "here").out == "data  /x\n"
        assert refstore("place", "nowhere").code == 2


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (errors.InvalidPath("no; do it right"), 2),
            (errors.BranchNotFound("no; list them"), 3),
            (errors.Gone("no"), 4),
            (errors.DirtyBranch("no; commit first"), 4),
            (errors.Contention("no; again"), 5),
            (errors.KVUnavailable("no; again"), 5),
            (errors.CorruptRange("no; look"), 6),
            (errors.StoreMisconfigured("no; set it"), 6),
        ],
    )
    def test_codes_and_messages(self, refstore, command, error: errors.RefstoreError, code: int) -> None:
        def fail(ctx: typer.Context) -> None:
            raise error

        command(fail)
        assert refstore("probe") == (code, "", f"refstore: {error}\n")
        outcome = refstore("probe", "--json")
        assert (outcome.code, outcome.out) == (code, "")
        assert json.loads(outcome.err) == {"code": error.code, "message": str(error), "retryable": error.retryable}

    def test_a_conflict_lists_its_paths(self, refstore, command) -> None:
        def fail(ctx: typer.Context) -> None:
            raise errors.MergeConflict("both sides", ("a", "b"))

        command(fail)
        assert json.loads(refstore("probe", "--json").err)["paths"] == ["a", "b"]

    def test_a_defect_shows_its_traceback_only_when_asked(self, refstore, command) -> None:
        def fail(ctx: typer.Context) -> None:
            raise ValueError("odd redis://u:pw@h")

        command(fail)
        assert refstore("probe") == (
            1,
            "",
            (
                "refstore: unexpected ValueError: odd redis://u:***@h; run it again with --debug, and report "
                "the traceback\n"
            ),
        )
        outcome = refstore("probe", "--debug")
        assert outcome.code == 1
        assert "Traceback" in outcome.err
        assert outcome.err.endswith("refstore: unexpected ValueError: odd redis://u:***@h\n")

    def test_an_interruption(self, refstore, command) -> None:
        def fail(ctx: typer.Context) -> None:
            raise KeyboardInterrupt

        command(fail)
        assert refstore("probe").code == 130

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("confg",), "Did you mean 'config'?"),
            (("config", "--dta", "x"), "No such option: --dta"),
            (("config", "more"), "unexpected extra argument"),
            (("config", "--data"), "requires an argument"),
            (("config", "--kv", "redis://h"), "without objects"),
            (("config", "--log-level", "loud"), "must be one of debug, info, warning, error"),
        ],
    )
    def test_wrong_use(self, refstore, args: tuple[str, ...], message: str) -> None:
        outcome = refstore(*args)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("refstore: ")
        assert message in outcome.err
        assert "Traceback" not in outcome.err
        assert message in json.loads(refstore("--json", *args).err)["message"]

    @pytest.mark.parametrize("words", [words for words, _ in commands_with_values()], ids=" ".join)
    def test_a_stray_word_is_told_which_options_take_a_value(self, refstore, words: tuple[str, ...]) -> None:
        """Most often it is the value of an option without the option's name."""
        options = dict(commands_with_values())[words]
        needed = [text for option in options if option.required for text in (option.opts[0], "1")]
        outcome = refstore(*words, *needed, *[f"word-{number}" for number in range(9)])
        assert outcome.code == 2
        assert "unexpected extra argument" in outcome.err
        for option in options:
            assert f"{option.opts[0]} " in outcome.err

    def test_a_branch_that_is_created_from_a_stray_word(self, refstore) -> None:
        assert "unexpected extra argument(s) (main); if it is the value of an option, name that: --from REF" in (
            refstore("branch", "create", "sales", "dev", "main").err
        )

    def test_a_reader_that_went_away(self, tmp_path: Path) -> None:
        """`refstore ... | head -1`: no message, no traceback."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            args = [sys.executable, "-m", "refstore", "config", "--data", str(tmp_path)]
            done = subprocess.run(args, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (141, "")

    def test_a_store_that_went_away_is_no_reader(self, refstore, command) -> None:
        def fail(ctx: typer.Context) -> None:
            raise BrokenPipeError

        command(fail)
        outcome = refstore("probe")
        assert outcome.code == 1
        assert "a store closed the connection" in outcome.err


class TestAnswers:
    def test_rows_may_differ_and_may_be_none(self, refstore, command) -> None:
        command(lambda ctx: common.emit(ctx, iter([{"a": 1, "b": None}, {"a": 20, "c": [True, "x"]}])))
        assert refstore("probe").out == " a  b  c\n 1\n20     yes, x\n"
        assert json.loads(refstore("probe", "--json").out) == [{"a": 1, "b": None}, {"a": 20, "c": [True, "x"]}]
        command(lambda ctx: common.emit(ctx, []))
        assert refstore("probe").out == ""
        assert json.loads(refstore("probe", "--json").out) == []

    def test_records_and_named_tuples_are_objects(self, refstore, command) -> None:
        class Pair(NamedTuple):
            left: int
            right: Path

        command(lambda ctx: common.emit(ctx, [Pair(1, Path("/x")), StoredTag("c", 5)]))
        assert json.loads(refstore("probe", "--json").out) == [
            {"left": 1, "right": "/x"},
            {"commit": "c", "created_ms": 5, "id": ""},
        ]
        command(lambda ctx: common.emit(ctx, {"pair": Pair(1, Path("/x"))}))
        assert json.loads(refstore("probe", "--json").out) == {"pair": {"left": 1, "right": "/x"}}

    def test_a_path_cannot_act_on_the_terminal(self, refstore, command) -> None:
        command(lambda ctx: common.emit(ctx, [{"path": "\x1b[31mred[/bold]\r\n", "n": 1}]))
        assert refstore("probe").out == "path                      n\n\\u001b[31mred[/bold]\\r\\n  1\n"

    def test_a_long_answer_is_printed_as_it_comes(self, refstore, command) -> None:
        printed: list[int] = []

        def rows() -> Iterator[dict[str, object]]:
            for n in range(5000):
                if n == 3000:
                    printed.append(len(sys.stdout.getvalue()))
                yield {"n": n, "text": "x" * 300}

        command(lambda ctx: common.emit(ctx, rows()))
        lines = refstore("probe").out.splitlines()
        assert len(lines) == 5001  # one header, no line broken or cut
        assert printed[0] > 500_000
        outcome = refstore("probe", "--json")
        assert len(json.loads(outcome.out)) == 5000

    def test_progress_is_silent_without_a_terminal(self, refstore, command) -> None:
        def work(ctx: typer.Context) -> None:
            with common.progress("working", 3) as bar:
                bar.advance()
                bar.describe("still")
                bar.advance(2)

        command(work)
        assert refstore("probe") == (0, "", "")


class TestPlainValues:
    """Typer converts what is not plain; what is plain does not get to it (`refstore/cli/plain_values.py`)."""

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (("--number", "x"), "valid integer"),
            (("--number", "11"), "less than or equal to 10"),
            (("--flag", "--no-such"), "No such option"),
            ((), "Missing parameter: words"),
        ],
    )
    def test_errors_are_typers(self, options: tuple[str, ...], error: str) -> None:
        with pytest.raises(Exception, match=error):
            self.run(*options, *(["word"] if options else []))

    def test_values_have_their_types(self) -> None:
        assert self.run("one", "two") == (["one", "two"], None, 3, [], False)
        options = ("--text", "", "--number", "7", "--many", "1", "--many", "2", "--flag")
        assert self.run("one", *options) == (["one"], "", 7, [1, 2], True)

    def run(self, *arguments: str) -> tuple[object, ...]:
        app, values = typer.Typer(), []

        @app.command()
        def command(  # pyright: ignore[reportUnusedFunction]  # typer calls it
            words: list[str],
            text: str | None = None,
            number: Annotated[int, typer.Option(max=10)] = 3,
            many: Annotated[list[int], typer.Option()] = [],  # noqa: B006  # Typer reads it
            *,
            flag: bool = False,
        ) -> None:
            values.append((words, text, number, many, flag))

        made: Any = typer.main.get_command(app)
        plain_values.take_plain_values(made)
        made.main(list(arguments), standalone_mode=False)
        return values[0]


class TestStart:
    def test_version(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "refstore", "--version"], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout == f"refstore {__version__}\n"

    def test_help_imports_no_command_and_no_store(self) -> None:
        """`refstore --help` is quick because of this; what is imported is told apart exactly, a time could not be."""
        code = "import sys; from refstore.cli import run; run([]); print(*sys.modules, file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        modules = set(done.stderr.split())
        assert "config" in done.stdout
        assert not {cli.module_of(name) for name in cli.COMMANDS} & modules
        assert (
            not {"pydantic", "rich.console", "structlog", "pyarrow", "redis", "boto3", "apsw", "refstore.repository"}
            & modules
        )

    def test_every_command_of_the_table_is_there(self) -> None:
        for name in cli.COMMANDS:
            assert isinstance(importlib.import_module(cli.module_of(name)).app, typer.Typer), name

    def test_the_options_have_settings_behind_them(self) -> None:
        assert set(options.OPTION_SETTINGS.values()) <= {*SETTINGS, *OPTIONS, "config"}


class TestLogs:
    @pytest.fixture
    def stream(self) -> io.StringIO:
        return io.StringIO()

    @pytest.mark.parametrize(("form", "service"), [("auto", True), ("json", False)])
    def test_json_lines_without_secrets_or_local_variables(
        self, stream: io.StringIO, form: Literal["auto", "json"], service: bool
    ) -> None:
        logs.configure_logs(LogSettings(format=form, level="info"), stream, service=service)
        password = SECRET
        log = event_log.get_logger("refstore.test")
        log.debug("too low")
        log.info("opened", url=f"redis://u:{password}@h", nested={"urls": [f"redis://u:{password}@h"]})
        with event_log.bind_fields(request_id="mine"):
            logging.getLogger("boto").warning("lost %s", f"redis://u:{password}@h")
        logging.getLogger("boto").info("too low")
        try:
            raise ValueError(f"no redis://u:{password}@h")
        except ValueError:
            log.exception("failed")
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert [(line["level"], line["event"]) for line in lines] == [
            ("info", "opened"),
            ("warning", "lost redis://u:***@h"),
            ("error", "failed"),
        ]
        assert lines[0]["nested"] == {"urls": ["redis://u:***@h"]}
        assert (lines[1]["logger"], lines[1]["request_id"]) == ("boto", "mine")
        assert "ValueError: no redis://u:***@h" in lines[2]["exception"]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["timestamp"]) for line in lines)
        assert SECRET not in stream.getvalue()

    def test_a_console_line_of_a_service(self, stream: io.StringIO) -> None:
        logs.configure_logs(LogSettings(format="console", level="warning"), stream, service=True)
        event_log.get_logger("refstore.test").info("too low")
        event_log.get_logger("refstore.test").warning("eviction is on", url="redis://u:pw@h")
        line = stream.getvalue()
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[warning *\] eviction is on +url=redis://u:\*\*\*@h$", line)
        assert len(line.splitlines()) == 1

    def test_a_command_logs_plain_lines_without_secrets(self, stream: io.StringIO) -> None:
        logs.configure_logs(LogSettings(level="info"), stream)
        log = event_log.get_logger("refstore.test")
        log.debug("too low")
        log.warning("eviction is on", url="redis://u:pw@h", hint="set noeviction", empty="", lines="a\nb", many=["x"])
        logging.getLogger("boto").info("too low")
        logging.getLogger("boto").warning("lost %s", "redis://u:pw@h")
        try:
            raise ValueError("no redis://u:pw@h")
        except ValueError:
            log.exception("failed")
        first, second, third, *rest = stream.getvalue().splitlines()
        assert first == (
            "refstore: warning: eviction is on url=redis://u:***@h "
            "hint='set noeviction' empty='' lines='a\\nb' many=['x']"
        )
        assert second == "refstore: warning: lost redis://u:***@h"
        assert (third, rest[0], rest[-1]) == (
            "refstore: error: failed",
            "Traceback (most recent call last):",
            "ValueError: no redis://u:***@h",
        )
        assert "pw" not in stream.getvalue()


class TestLogsOfAnApplication:
    """What an application that embeds refstore sees."""

    LOG = (
        "from refstore.core import event_log; "
        "event_log.get_logger('refstore.x').warning('kv_may_evict', url='redis://u:pw@h', servers=3)"
    )

    def run(self, code: str) -> tuple[str, str]:
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        return ran.stdout, ran.stderr

    def test_nothing_until_it_says_where_records_go(self) -> None:
        assert self.run(self.LOG) == ("", "")

    def test_the_message_holds_the_fields(self) -> None:
        assert self.run(f"import logging; logging.basicConfig(); {self.LOG}") == (
            "",
            "WARNING:refstore.x:kv_may_evict url=redis://u:***@h servers=3\n",
        )

    def test_the_record_holds_them_too_and_says_where_it_was_logged(self) -> None:
        shaped = "format='%(event)s %(fields)s %(module)s %(funcName)s'"
        assert self.run(f"import logging; logging.basicConfig({shaped}); {self.LOG}") == (
            "",
            "kv_may_evict {'url': 'redis://u:***@h', 'servers': 3} <string> <module>\n",
        )

    def test_what_the_page_about_logs_says_works(self) -> None:
        section = Path("docs/usage.md").read_text().partition("## Logs")[2].partition("\n## ")[0]
        shown, silenced, shaped = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        assert self.run(shown + self.LOG)[1].startswith("WARNING:refstore.x:kv_may_evict url=redis://u:***@h")
        assert self.run(silenced + self.LOG) == ("", "")
        line = '{"event": "kv_may_evict", "url": "redis://u:***@h", "servers": 3}\n'
        assert self.run(shaped + "\n" + self.LOG) == ("", line)

    def test_every_package_of_the_product_is_below_one_of_the_loggers(self) -> None:
        packages = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
        assert {Path(each).name for each in packages["packages"]} == set(event_log.ROOTS)
