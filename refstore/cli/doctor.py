"""`refstore doctor`: look at an installation, and say what is wrong and what to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import typer

from refstore import __version__
from refstore.cli.common import emit, loaded_of, open_lake
from refstore.core.file_modes import find_exposed
from refstore.core.redaction import redact_text, redact_url
from refstore.core.safety import is_for_trying
from refstore.core.units import format_age
from refstore.errors import RefstoreError, Unavailable
from refstore.monitoring import figures
from refstore.objects import open_objects

if TYPE_CHECKING:
    from refstore.context import Context
    from refstore.kv_recovery.kv_verification import KvVerification
    from refstore.lake import Lake

app = typer.Typer()

LOW_RESERVES: Final = 4
LOW_SHARE: Final = 20
"""A disk with less free than this many times its last bytes, or this share of it, is nearly full."""
SLOW_SECONDS: Final = 0.5
"""A store that takes longer to answer one small call is told."""
PACKAGES: Final = ("redis", "psycopg", "boto3", "fastapi", "pyspark", "pyarrow")
NAMES_SHOWN: Final = 5
RECONCILE: Final = "see all of it with `refstore kv verify`, then settle it with `refstore kv reconcile`"
PROBE: Final = "_refstore/doctor/"
KEPT_VERSIONS: Final = "versions of deleted objects"
PERMISSIONS: Final = "permissions and clocks"
State = Literal["ok", "warning", "error"]
EXIT_CODES: Final = {"ok": 0, "warning": 4, "error": 6}


class Check(NamedTuple):
    check: str
    state: State
    found: str
    advice: str = ""


@app.command("doctor")
def doctor(
    ctx: typer.Context,
    write: Annotated[
        bool,
        typer.Option(
            "--write/--no-write", help="Also write, read and delete a small object, to see the permissions and clocks."
        ),
    ] = True,
) -> int:
    """Look at settings, stores, permissions, clocks, durations, reapers, repositories and Java, and say what to do.

    Exit code 0: all is well. 4: there are warnings. 6: something does not work.

    \b
    Example: refstore doctor
             refstore doctor --no-write --json
    """
    checks = list(_checks(ctx, write=write))
    emit(ctx, [check._asdict() for check in checks])
    worst = max((check.state for check in checks), key=lambda state: EXIT_CODES[state])
    return EXIT_CODES[worst]


def _checks(ctx: typer.Context, *, write: bool) -> Iterator[Check]:
    loaded = loaded_of(ctx)
    where = str(loaded.file.path) if loaded.file.path else "no file; environment, command line and defaults"
    yield Check("settings", "warning" if loaded.warnings else "ok", where, "; ".join(loaded.warnings))
    yield _versions()
    yield from _check_safely("java", _java)
    yield from _check_safely("lake", partial(_lake, ctx, write=write))
    places = [loaded.settings.data] if loaded.settings.data is not None else []
    for place, mode in find_exposed(places):
        yield Check("files", "warning", f"{place} has the mode {mode:04o}", f"take it from others: chmod go= {place}")


def _check_safely(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield what a look finds. An error that it raises is what it found."""
    try:
        yield from look()
    except RefstoreError as error:
        yield Check(name, "error", *_parts(str(error)))


def _parts(message: str) -> tuple[str, str]:
    """Split a message into what happened, and what to do."""
    what, _, advice = redact_text(message).partition("; ")
    return what, advice


def _versions() -> Check:
    found = [f"refstore {__version__}", f"Python {sys.version.split()[0]}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return Check("versions", "ok", ", ".join(found))


def _java() -> Iterator[Check]:
    if find_spec("pyspark") is None:
        yield Check("java", "ok", "pyspark is not installed; the offline job runs on the local engine")
        return
    from refstore_gc.engines.spark_session import find_java

    yield Check("java", "ok", find_java())


def _lake(ctx: typer.Context, *, write: bool) -> Iterator[Check]:
    from refstore.kv_recovery.kv_verification import verify_lake

    with open_lake(ctx, read_only=True) as lake:
        yield from _time_call("kv", lambda: len(list(lake.repository_records())), "repositories")
        yield from _check_safely("durations", partial(_durations, lake))
        yield from _time_call(
            f"objects at {redact_url(lake.objects_url)}",
            lambda: len(list(islice(lake.own_store.list(PROBE), 1))),
            "probes listed",
        )
        yield from _check_safely("kv: durability", partial(_risks, lake))
        yield from _disks(lake)
        yield from _check_safely(KEPT_VERSIONS, partial(_kept_versions, lake))
        if write:
            yield from _check_safely(PERMISSIONS, partial(_probe, lake))
        yield _reapers(lake)
        seen = verify_lake(lake)
        yield from _check_safely("deletion", partial(_deletion, lake, seen))
        yield from _repositories(lake, seen)


def _time_call(name: str, call: Callable[[], int], found: str) -> Iterator[Check]:
    """Look whether a store answers one small call, and how soon."""

    def look() -> Iterator[Check]:
        began = time.perf_counter()
        count = call()
        seconds = time.perf_counter() - began
        text = f"answers in {seconds * 1000:.0f} ms; {count} {found}"
        if seconds > SLOW_SECONDS:
            yield Check(name, "warning", text, "it is slow; look at its load, and at the network")
        else:
            yield Check(name, "ok", text)

    return _check_safely(name, look)


def _durations(lake: Lake) -> Iterator[Check]:
    agreed = lake.durations.waits
    found = f"an operation may take {agreed.operation_deadline_seconds:g} s"
    if is_for_trying(agreed):
        advice = "keep nothing here that must last; a lake for data is made without --for-trying"
        yield Check("durations", "warning", f"this lake is for trying: {found}", advice)
    else:
        yield Check("durations", "ok", found)


def _risks(lake: Lake) -> Iterator[Check]:
    """Say what may lose records of the KV."""
    risks = lake.kv.risks()
    for risk in risks:
        yield Check("kv: durability", "warning", *_parts(risk))
    if not risks:
        yield Check("kv: durability", "ok", "no setting is known by which it would lose records")


def _disks(lake: Lake) -> Iterator[Check]:
    """Look at the room on the disks of this machine that hold the lake."""
    from refstore.disk_reserves import disk_spaces

    try:
        found = disk_spaces(lake)
    except OSError as error:
        yield Check("disk", "error", str(error), "check that the file system is mounted")
        return
    for space in found:
        what = f"disk at {space.mount}"
        if space.free_bytes < space.reserved_bytes:
            advice = "make room there, or let refstore reaper free what was deleted; until then uploads are refused"
            yield Check(what, "error", f"it is full: {space}", advice)
        elif space.free_bytes < max(LOW_RESERVES * space.reserved_bytes, space.size_bytes // LOW_SHARE):
            yield Check(what, "warning", f"it is nearly full: {space}", "make room there, or put the lake elsewhere")
        else:
            yield Check(what, "ok", str(space))


def _kept_versions(lake: Lake) -> Iterator[Check]:
    what, advice = _parts(lake.own_store.versioning_status().warning)
    if advice:
        yield Check(KEPT_VERSIONS, "warning", what, advice)
    else:
        yield Check(KEPT_VERSIONS, "ok", "the store keeps none of what refstore deletes")


def _probe(lake: Lake) -> Iterator[Check]:
    """Write, read and delete an object, and compare the store's clock with this machine's."""
    key = f"{PROBE}{lake.ids.new_id(lake.clock.now_ms())}"
    with closing(open_objects(lake.resolve(lake.objects_url))) as store:  # the lake itself is open to read only
        began_ms = lake.clock.now_ms()
        store.put(key, b"refstore doctor")
        ended_ms = lake.clock.now_ms()
        written_ms = store.head(key).mtime_ms
        readable = store.read(key) == b"refstore doctor"
        failed = store.delete_many([key]).failed_keys
    off_ms = max(0, began_ms - 1000 - written_ms, written_ms - ended_ms - 1000)
    if failed or not readable:
        what = f"{key} could not be {'deleted' if failed else 'read back'}"
        yield Check(PERMISSIONS, "error", what, "give these credentials the right to put, get, list and delete")
    elif off_ms > lake.durations.waits.clock_skew_seconds * 1000:
        what = f"the store's clock and this machine's differ by {format_age(off_ms)}"
        yield Check(PERMISSIONS, "error", what, "set the clock by NTP, on this machine and on the store's")
    else:
        yield Check(PERMISSIONS, "ok", "put, head, get and delete work; the clocks agree")


def _reapers(lake: Lake) -> Check:
    from refstore_reaper.status import read_status

    reapers = read_status(lake, repository="").reapers
    dead = [each.reaper for each in reapers if not each.is_alive]
    alive = len(reapers) - len(dead)
    if not alive:
        return Check("reapers", "warning", "none runs", "start one: refstore reaper, or refstore serve")
    if dead:
        found = f"{alive} alive, {len(dead)} dead: {', '.join(dead[:3])}"
        return Check("reapers", "warning", found, "look why they ended; their heartbeats go after a day")
    return Check("reapers", "ok", f"{alive} alive")


def _deletion(lake: Lake, seen: KvVerification) -> Iterator[Check]:
    from refstore.kv_recovery.kv_verification import KvFindingKind

    wait = lake.settlement_wait()
    if lost := [item.name for item in seen.of_kind(KvFindingKind.POSITION, KvFindingKind.LOST)]:
        named = "; ".join(lost[:NAMES_SHOWN])
        yield Check("deletion", "error", f"it is stopped, because the KV has lost {named}", RECONCILE)
    elif wait is None:
        yield Check("deletion", "ok", "no change of the KV's servers holds it back")
    else:
        what, _, meanwhile = wait.describe(lake.clock.now_ms()).partition("; ")
        yield Check("deletion", "warning", what, f"wait; {meanwhile}")


def _repositories(lake: Lake, seen: KvVerification) -> Iterator[Check]:
    repositories, now_ms = list(lake.repository_records()), lake.clock.now_ms()
    known = figures.read_all_figures(lake.kv, [record.id for _, record in repositories])
    silent = False
    for name, record in repositories:
        for each in figures.find_warnings(known[record.id], record.created_ms, now_ms):
            yield Check(f"repository {name}", "warning", each.concern.value, each.detail)
        is_local = lake.namespace_url(record).startswith("file:")
        if silent and not is_local:
            continue  # each would take the whole time that a store has to answer
        try:
            context = lake.context(name, record)  # which looks whose the namespace is
            yield from _records_of(context, seen)
        except RefstoreError as error:
            yield Check(f"repository {name}", "error", *_parts(str(error)))
            silent |= isinstance(error, Unavailable) and not is_local
    yield Check("repositories", "ok", f"{len(repositories)}")


def _records_of(context: Context, seen: KvVerification) -> Iterator[Check]:
    """Tell which tags a branch of the same name hides, whose rules wait for an operator, and what the KV is known to
    have lost. Raises Corrupt, Unavailable.
    """
    from refstore.kv_recovery.kv_verification import find_known_losses
    from refstore.operations import tag
    from refstore.operations.rules_in_force import get_rules

    where = f"repository {context.name}"
    if names := list(tag.tags_hidden_by_branches(context)):
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        yield Check(
            where,
            "warning",
            f"branches hide tags of the same name: {', '.join(names[:NAMES_SHOWN])}{more}",
            "a ref of that name means the branch; create a tag of another name at the commit that `refstore tag list` "
            "shows, then delete the hidden one",
        )
    own = get_rules(context)
    if own is not None and own.withheld:
        advice = f"look at the audit log, and set the rules that you want: refstore retention set {context.name} FILE"
        yield Check(where, "error", f"nothing expires: {own.withheld}", advice)
    if lost := find_known_losses(context, seen):
        named = "; ".join(f"{item.name}: {item.reason}" for item in lost[:NAMES_SHOWN])
        more = f"; and {len(lost) - NAMES_SHOWN} more" if len(lost) > NAMES_SHOWN else ""
        yield Check(where, "error", f"the KV has lost {named}{more}", RECONCILE)
