"""Give objects another content, in every version at once (rule 22): intend, write, publish. Needs no Spark.

The caller writes the contents; it is given where each content lies, and where the new one shall. All of it is one
operation under the deadline of all operations. What does not end with it leaves intents, which the nightly job clears.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from refstore.context import Context
from refstore.core import deadline, ids
from refstore.core.ids import Address
from refstore.records.encoding import encode
from refstore.records.location_records import Content
from refstore.versioning.locations import LocatedIdentity, RewriteIntent, WrittenContent
from refstore.versioning.manifest import LocationsPublished, ManifestLocation


class ReplacementAttempt(NamedTuple):
    """An object that is to be replaced: `current` is its content, and `target_address` the address of the new one."""

    number: int
    """Of the object among those that were given."""
    located_identity: LocatedIdentity
    current: Content
    target_address: Address


WriteContents = Callable[[Sequence[ReplacementAttempt]], Sequence[Content | None]]
"""Writes new contents; None: the object stays as it is, and what was written goes."""


def replace_contents(
    ctx: Context,
    run: str,
    objects: Sequence[tuple[Address, Content]],
    write: WriteContents,
    note: Callable[[ReplacementAttempt], None],
) -> list[int]:
    """Replace the contents of objects, given as they were uploaded, by what `write` returns for them; what goes becomes
    a backup. `note` is told of each that was published. Return the numbers of the objects that others kept changing;
    another attempt may find them at rest.

    Raises DeadlineExceeded, Unavailable, and what `write` raises; made again it goes on.
    """
    with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
        attempts, busy = _write_intents(ctx, run, objects)
        contents = write(attempts) if attempts else ()
        written = [(attempt, new) for attempt, new in zip(attempts, contents, strict=True) if new is not None]
        published = ctx.locations.publish(
            [WrittenContent(attempt.located_identity, new) for attempt, new in written], run
        )
        for (attempt, _), there in zip(written, published, strict=True):
            if there is not None:
                note(attempt)
        lost = [attempt for (attempt, _), there in zip(written, published, strict=True) if there is None]
        withdrawn = [attempt for attempt, new in zip(attempts, contents, strict=True) if new is None]
        try:
            keep_in_manifest(ctx, [there for there in published if there is not None], f"run {run} purged objects")
        finally:
            delete_unpublished(ctx, [*withdrawn, *lost])
        ctx.locations.withdraw([attempt.located_identity for attempt in withdrawn])
    return [*busy, *(attempt.number for attempt in lost)]


def keep_in_manifest(ctx: Context, published: Sequence[LocatedIdentity], what: str) -> None:
    """Write to the manifest where contents lie now, so that a KV that loses that is told. Raises ObjectsUnavailable."""
    if published:
        items = tuple(ManifestLocation(each.identity, encode(each.location)) for each in published)
        ctx.manifest.add_landed(LocationsPublished(ctx.ids.new_id(ctx.clock.now_ms()), items), what)


def _write_intents(
    ctx: Context, run: str, objects: Sequence[tuple[Address, Content]]
) -> tuple[list[ReplacementAttempt], list[int]]:
    """Write the intents; return what may be written, and the objects that others keep changing. An object that is
    erased by now needs nothing.
    """
    now = ctx.clock.now_ms()
    intentions = [RewriteIntent(identity, content, ids.new_address(ctx.ids, now)) for identity, content in objects]
    attempts: list[ReplacementAttempt] = []
    busy: list[int] = []
    for index, located in enumerate(ctx.locations.intend(intentions, run)):
        if located is None:
            busy.append(index)
        elif located.location.current is None or located.location.current.is_erased:
            ctx.locations.withdraw([located])
        else:
            attempts.append(ReplacementAttempt(index, located, located.location.current, intentions[index].address))
    return attempts, busy


def delete_unpublished(ctx: Context, attempts: Sequence[ReplacementAttempt]) -> None:
    """Delete what was written and not published."""
    addresses = ctx.locations.find_unpublished(
        [(each.located_identity.identity, each.target_address) for each in attempts]
    )
    if addresses:
        ctx.objects.delete_many(addresses)
