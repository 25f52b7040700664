"""What the commands share: settings, answers on standard output, progress on standard error.

    settings_of(ctx)         the settings in force; the first call also sets up the logs
    open_lake(ctx)           the lake they name; `repository_of(ctx, name)` one repository of it
    emit(ctx, answer)        a table for people, JSON with --json; one object or many rows, which may be a generator
    progress(...)            a bar on standard error, on a terminal only

Commands open their stores here as well, so that every command finds them in one way. Answers are read from the stores
while they are printed: `emit` stands inside `with open_lake(ctx)`.
"""

from __future__ import annotations

import csv
import dataclasses
import getpass
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import unquote

import msgspec
import typer

from refstore.cli.options import Invocation
from refstore.cli.tables import print_rows
from refstore.configuration.settings import Settings
from refstore.configuration.settings_loader import LoadedSettings
from refstore.core import event_log
from refstore.core.file_modes import find_exposed
from refstore.core.safety import FOR_TRYING, SHARED
from refstore.core.visible_text import make_streams_visible, make_visible_line, own_stream
from refstore.errors import NotFound

if TYPE_CHECKING:
    from refstore.lake import Lake
    from refstore.repository import Repository

LINES_MAX: Final = 20
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How formulas begin, also in the wide letters that spreadsheets read as these."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_log = event_log.get_logger(__name__)


def invocation_of(ctx: typer.Context) -> Invocation:
    return cast(Invocation, ctx.obj)


def loaded_of(ctx: typer.Context) -> LoadedSettings:
    """Return the settings with their origins. Only here the command reads the environment."""
    invocation = invocation_of(ctx)
    if "loaded" not in invocation.cache:
        from refstore.configuration import logs
        from refstore.configuration.configured_lake import find_settings

        loaded = find_settings(invocation.flags)
        logs.configure_logs(loaded.settings.log, sys.stderr)
        for warning in loaded.warnings:
            print(f"refstore: warning: {warning}", file=sys.stderr)
        invocation.cache["loaded"] = loaded
    return cast(LoadedSettings, invocation.cache["loaded"])


def settings_of(ctx: typer.Context, *, service: bool = False) -> Settings:
    """`service`: this command runs until somebody ends it, and logs as services do from now on."""
    settings = loaded_of(ctx).settings
    if service:
        from refstore.configuration import logs

        logs.configure_logs(settings.log, sys.stderr, service=True)
    return settings


def override_settings(ctx: typer.Context, options: Mapping[str, object]) -> None:
    """Take a command's own options for settings, by the settings' names; None: not given. To be called before the first
    look at the settings.
    """
    invocation_of(ctx).flags.update(options)


@contextmanager
def open_lake(
    ctx: typer.Context,
    *,
    create: bool = False,
    read_only: bool = False,
    check_identity: bool = True,
    allow_foreign: Sequence[str] = (),
    for_trying: bool = False,
) -> Generator[Lake, None, None]:
    """Open the lake of the settings for the block. `create`: make the embedded default if it is missing; otherwise
    raise NotFound. `for_trying`: with durations for trying, which the lake must have or not have any yet. The others:
    as in `refstore.configuration.configured_lake.open_lake`.
    """
    from refstore.audit import act_as, local_actor
    from refstore.configuration import configured_lake

    settings = settings_of(ctx)
    if for_trying:
        settings = replace(settings, safety=FOR_TRYING)
    with (
        act_as(local_actor("cli", ctx.command_path)),
        configured_lake.open_lake(
            settings,
            explicit=dict.fromkeys(SHARED, "--for-trying") if for_trying else None,
            create=create,
            read_only=read_only,
            check_identity=check_identity,
            allow_foreign=allow_foreign,
        ) as lake,
    ):
        yield lake


def warn_of_open_folders(settings: Settings) -> None:
    """Log which of the lake's local files other users can read or write. With the signing key they could impersonate
    anyone.
    """
    kv = settings.kv.partition("?")[0]
    kv_file = unquote(kv.removeprefix("sqlite:").removeprefix("//")) if kv.startswith("sqlite:") else ""
    objects = settings.objects.partition("?")[0]
    places = [settings.data] if settings.data is not None else []
    places += [Path(kv_file + ending) for ending in ("", "-wal", "-shm")] if kv_file else []
    places += [Path(unquote(objects.removeprefix("file://")))] if objects.startswith("file://") else []
    for place, mode in find_exposed(places):
        _log.warning(
            "open_to_others",
            path=str(place),
            mode=f"{mode:04o}",
            hint=f"take it from them: chmod go= {place}; or share it by group: docs/security.md",
        )


@contextmanager
def repository_of(
    ctx: typer.Context, name: str, *, read_only: bool = False, allow_foreign: Sequence[str] = ()
) -> Generator[Repository, None, None]:
    """Open one repository of the lake for the block. Raises RepositoryNotFound."""
    with open_lake(ctx, read_only=read_only, allow_foreign=allow_foreign) as lake:
        repo = lake.repository(name)
        try:
            yield repo
        except NotFound as error:  # of an operation that is none of the repository's methods: these have suggested
            from refstore.operations import refs

            refs.suggest_name(repo.context, error)
            raise


def emit(ctx: typer.Context, answer: object, *, is_check: bool = False) -> None:
    """Print an answer: a mapping, named tuple, dataclass or record as one object; any other iterable as its rows.

    `is_check`: the rows are what a check found. Where it found nothing the caller says so, and no table does.
    """
    print_answer(invocation_of(ctx).output, answer, is_check=is_check)


def print_answer(output: str, answer: object, *, is_check: bool = False) -> None:
    """Print an answer as `emit` does. `output`: `table`, `json` or `csv`."""
    one = _fields(answer)
    if output == "csv":
        _print_csv([one] if one is not None else (_fields(row) or {"": row} for row in cast(Iterable[object], answer)))
    elif output == "json":
        if one is not None:
            print(msgspec.json.format(_json(one), indent=2).decode())
        else:
            _print_json_rows(cast(Iterable[object], answer))
    elif one is not None:
        print_rows(({"": name.replace("_", " "), " ": value} for name, value in one.items()), header=False)
    else:
        rows = (_fields(row) or {"": row} for row in cast(Iterable[object], answer))
        if is_check:
            print_rows(rows, empty="")
        else:
            print_rows(rows)


def warn_of(texts: Iterable[str]) -> None:
    """Print warnings."""
    for each in texts:
        print(f"refstore: warning: {each}", file=sys.stderr)


def tell_some(lines: Sequence[str]) -> None:
    """Print lines to standard error: the first ones, and how many more there are."""
    for line in lines[:LINES_MAX]:
        print(line, file=sys.stderr)
    if len(lines) > LINES_MAX:
        print(f"... and {len(lines) - LINES_MAX} more; --json lists them", file=sys.stderr)


def who() -> str:
    """Return the user's name; '' if there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without users
        return ""


class ProgressBar(Protocol):
    def advance(self, count: int = 1) -> None: ...

    def describe(self, text: str) -> None:
        """Replace the words beside the bar."""
        ...


@contextmanager
def progress(description: str, total: int | None = None) -> Generator[ProgressBar, None, None]:
    """Show a progress bar on standard error during the block, on a terminal only. `total`: None if unknown."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # while a bar is shown, rich writes what others print, so that has to be made visible before it
    with (
        Progress(*columns, console=Console(file=own_stream(sys.stderr)), transient=True) as bars,
        make_streams_visible(),
    ):
        yield _Bar(bars, bars.add_task(description, total=total))


@contextmanager
def stopping() -> Generator[threading.Event, None, None]:
    """Yield an event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = threading.Event()

    def ask(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, before[number])

    before: dict[int, Any] = {int(number): signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Silent:
    """Shows no progress: the output is not a terminal."""

    def advance(self, count: int = 1) -> None: ...

    def describe(self, text: str) -> None: ...


class _Bar:
    def __init__(self, bars: Any, task: Any) -> None:
        self._bars = bars
        self._task = task

    def advance(self, count: int = 1) -> None:
        self._bars.advance(self._task, count)

    def describe(self, text: str) -> None:
        self._bars.update(self._task, description=make_visible_line(text))


def _fields(value: object) -> dict[str, object] | None:
    """Return the fields of a mapping, struct, named tuple or dataclass; None for other values."""
    if isinstance(value, Mapping):
        return dict(cast(Mapping[str, object], value))
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    as_dict: Callable[[], dict[str, object]] | None = getattr(value, "_asdict", None)  # a named tuple's
    if as_dict is not None:
        return as_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    return None


def _json(value: object) -> bytes:
    return msgspec.json.encode(_plain(value), enc_hook=str)


def _plain(value: object) -> object:
    """Return the value with its named tuples as objects, because msgspec makes arrays of them."""
    fields = _fields(value)
    if fields is not None:
        return {name: _plain(inner) for name, inner in fields.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in cast(Iterable[object], value)]
    return value


def _print_csv(rows: Iterable[dict[str, object]]) -> None:
    """Print rows as RFC 4180 has it. The first row names the columns; a field that only later rows have is left out.

    A spreadsheet would run text that begins as a formula does. It gets an apostrophe, as OWASP advises against CSV
    injection.
    """
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), extrasaction="ignore")
            writer.writeheader()
        writer.writerow({name: _csv_value(value) for name, value in row.items()})


def _csv_value(value: object) -> object:
    """Return numbers as they are, text so that it is no formula, and lists and objects as JSON."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return _json(value).decode()


def _print_json_rows(rows: Iterable[object]) -> None:
    """Print an array row by row, because the answer may be larger than memory. After an error the output is no valid
    JSON.
    """
    separator = "[\n"
    for row in rows:
        print(separator + "  " + _json(row).decode(), end="")
        separator = ",\n"
    print("[]" if separator == "[\n" else "\n]")
