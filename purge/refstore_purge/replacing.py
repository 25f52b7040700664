"""Give objects another content, in every version at once (rule 22): intend, write, publish. Needs no Spark.

The caller writes the contents; it is given where each content lies, and where the new one shall. All of it is one
operation under the deadline of all operations. What does not end with it leaves intents, which the nightly job clears.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import deadline, ids
from refstore.core.ids import Address
from refstore.core.records import Content, encode
from refstore.versioning.locations import Intention, LocatedIdentity, Publication
from refstore.versioning.manifest import KeptLocation, LocationsKept

NOWHERE: Final = Address("")
"""Where the content of an erased object lies."""


class Original(NamedTuple):
    """An object, and its content as it was uploaded."""

    identity: Address
    content: Content


class Attempt(NamedTuple):
    """An object that is to be replaced: `current` is its content, and `to` the address of the new one."""

    number: int
    """Of the object among those that were given."""
    located: LocatedIdentity
    current: Content
    to: Address


Write = Callable[[Sequence[Attempt]], Sequence[Content | None]]
"""Writes new contents; None: the object stays as it is, and what was written goes."""


def replace(
    ctx: Context, run: str, objects: Sequence[Original], write: Write, note: Callable[[Attempt], None]
) -> list[int]:
    """Replace contents by what `write` returns for them; what they replace becomes backups. `note` is told of each that
    was published. Return the numbers of the objects that others kept changing; another attempt may find them at rest.

    Raises DeadlineExceeded, Unavailable, and what `write` raises; made again it goes on.
    """
    with deadline.operation(ctx.clock, ctx.safety.operation_deadline_seconds):
        attempts, busy = _intend(ctx, run, objects)
        contents = write(attempts) if attempts else ()
        written = [(attempt, new) for attempt, new in zip(attempts, contents, strict=True) if new is not None]
        published = ctx.locations.publish([Publication(attempt.located, new) for attempt, new in written], run)
        for (attempt, _), there in zip(written, published, strict=True):
            if there is not None:
                note(attempt)
        lost = [attempt for (attempt, _), there in zip(written, published, strict=True) if there is None]
        withdrawn = [attempt for attempt, new in zip(attempts, contents, strict=True) if new is None]
        try:
            keep_in_manifest(ctx, [there for there in published if there is not None], f"run {run} purged objects")
        finally:
            _delete_unpublished(ctx, [*withdrawn, *lost])
        ctx.locations.withdraw([attempt.located for attempt in withdrawn])
    return [*busy, *(attempt.number for attempt in lost)]


def keep_in_manifest(ctx: Context, published: Sequence[LocatedIdentity], what: str) -> None:
    """Write to the manifest where contents lie now, so that a KV that loses that is told. Raises ObjectsUnavailable."""
    if published:
        items = tuple(KeptLocation(each.identity, encode(each.location)) for each in published)
        ctx.manifest.add_landed(LocationsKept(ctx.ids.unique(ctx.clock.now_ms()), items), what)


def _intend(ctx: Context, run: str, objects: Sequence[Original]) -> tuple[list[Attempt], list[int]]:
    """Write the intents; return what may be written, and the objects that others keep changing. An object that is
    erased by now needs nothing.
    """
    now = ctx.clock.now_ms()
    intentions = [Intention(each.identity, each.content, ids.new_address(ctx.ids, now)) for each in objects]
    attempts: list[Attempt] = []
    busy: list[int] = []
    for index, located in enumerate(ctx.locations.intend(intentions, run)):
        if located is None:
            busy.append(index)
        elif located.location.current is None or located.location.current.is_erased:
            ctx.locations.withdraw([located])
        else:
            attempts.append(Attempt(index, located, located.location.current, intentions[index].address))
    return attempts, busy


def _delete_unpublished(ctx: Context, attempts: Sequence[Attempt]) -> None:
    """Delete what was written and not published."""
    addresses = ctx.locations.unpublished([(each.located.identity, each.to) for each in attempts])
    if addresses:
        ctx.objects.delete_many(addresses)
