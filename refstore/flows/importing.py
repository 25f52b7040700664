"""Naming the objects of others, any number of them, in one commit and without reading their data.

    list     page by page, into a temporary file of this machine; as long as it takes, and nothing is written to any store
    write    ranges, metarange and commit record, as a merge does, of what was listed
    advance  one `set_if` on the branch record (rule 16: nothing may be staged)

Writing and advancing are one operation, under its deadline: ranges that no commit names yet are never older than the longest operation,
which is what the offline job leaves alone. What is listed has no address of our own, so the commit adds none, no reference is made, and
neither the reaper nor the offline job ever has one of them to delete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from refstore import deadline, ids
from refstore.commits import imported
from refstore.commits.imported import Spool
from refstore.context import Context
from refstore.errors import Conflict, ForeignNotAllowed, Invalid, ObjectNotFound, StoreMisconfigured
from refstore.flows import committing, refs
from refstore.flows.committing import CommitOptions
from refstore.ids import BranchName, CommitId
from refstore.namespaces import Namespaces
from refstore.objects.base import ListedPage, ObjectInfo, ObjectStore, Skipped
from refstore.objects.foreign import ForeignStores, Place, Prefixes, parse_place
from refstore.objects.local import LocalObjects
from refstore.records import Commit, ImportSource

Watch = Callable[[int, int], None]
"""Told from time to time how many objects were listed, and how many left out. What it raises ends the import; nothing has landed then."""

SOURCES_MAX: Final = 1000
"""Of one import."""


class Imported(NamedTuple):
    """What an import came to."""

    commit: CommitId | None
    """None: it was a dry run."""
    record: Commit | None
    objects: int
    size_bytes: int
    there: int
    """How many paths there were at the destinations before."""
    removed: int
    """How many of those are gone from the branch, as they were not imported again; of a dry run 0."""
    skipped: int
    """What the sources hold and cannot be named: links, and names that are no paths."""
    examples: tuple[tuple[str, str], ...]
    """(name, why it was left out), of the first few."""


class _Source(NamedTuple):
    """Where to list, and how a key becomes a path and an address."""

    given: ImportSource
    store: ObjectStore
    prefix: str
    cut: int
    destination: str
    root: str
    key: str = ""
    """Of a single object."""


def nothing_to_tell(_objects: int, _skipped: int) -> None:
    return


def import_objects(
    ctx: Context,
    branch: BranchName,
    sources: Sequence[ImportSource],
    options: CommitOptions,
    *,
    stores: ForeignStores | None = None,
    allowed: Prefixes | None = None,
    watch: Watch = nothing_to_tell,
    about_to_land: Callable[[CommitId], None] = lambda _commit: None,
    dry_run: bool = False,
) -> Imported:
    """Replace what is at the destinations by names of the sources' objects, in one commit.

    Where two sources bring one path, a single object goes before a prefix, and the later before the earlier. `allowed`: sources must lie
    below one of these; None: they may lie anywhere but in a namespace of this lake. `about_to_land` is told the commit's id before the
    branch is moved.

    Raises Invalid (a source or destination is none), ObjectNotFound (a source holds nothing), DirtyBranch, NothingToCommit,
    BranchNotFound, Unavailable, Contention. Nothing is changed then.
    """
    stores = stores or ctx.foreign
    planned = check(ctx, sources, stores, allowed)
    prefixes = _outermost([source.destination for source in planned if not source.key])
    committing.check_clean(ctx, branch)
    skipped = Skipped()
    spool = Spool(lambda: watch(spool.objects, skipped.count))
    with spool:
        try:
            size_bytes = _list(planned, spool, skipped, watch)
        except StoreMisconfigured as error:  # the source's, which is not this lake's to mend
            raise Invalid(f"nothing was imported, as the source cannot be read: {error}") from error
        told = spool.objects, size_bytes
        left_out = skipped.count, tuple(skipped.examples)
        with deadline.operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            if dry_run:
                head = refs.resolve(ctx, branch).commit
                return Imported(None, None, *told, ctx.trees.count_below(refs.get_commit(ctx, head).metarange, prefixes), 0, *left_out)
            (new, made), written = committing.replace(ctx, branch, options, spool, prefixes, about_to_land)
        there = written.replaced + written.removed + written.unchanged
        return Imported(new, made, *told, there, written.removed, *left_out)


def check(ctx: Context, sources: Sequence[ImportSource], stores: ForeignStores, allowed: Prefixes | None) -> list[_Source]:
    """The sources, ready to be listed. Raises what `import_objects` raises of them, before anything is listed."""
    if len(sources) > SOURCES_MAX:
        raise Invalid(f"an import has at most {SOURCES_MAX:,} sources, this one {len(sources):,}; make several imports of them")
    namespaces = Namespaces.read(ctx.kv)
    return [_planned(source, namespaces, stores, allowed) for source in sources]


def _planned(source: ImportSource, namespaces: Namespaces, stores: ForeignStores, allowed: Prefixes | None) -> _Source:
    place = parse_place(source.url).real()
    folder = None
    if allowed is not None:
        if place.options:  # else a caller could have this process's credentials sent to a server of his own
            raise Invalid(f"{place.url[:200]!r} has options; leave them out: how a bucket is reached is the operator's to say")
        folder = allowed.covering(place)
        if folder is None:
            raise ForeignNotAllowed(f"{source.url[:200]!r} cannot be imported: {allowed.refusal}")
    if source.is_object:
        ids.object_path(source.destination)
        namespaces.check_object(place.url)
        store, key = stores.store_of(place, folder)
        # of a file the store begins above it, and the address above that
        root = Place(place.kind, place.bucket, place.path.removesuffix(key)).url
        return _Source(source, store, "", len(key), source.destination, root, key)
    destination = source.destination
    if destination and not destination.endswith("/"):
        destination += "/"
    ids.path_prefix(destination)
    if place.kind == "file":
        place = place._replace(path=place.path.rstrip("/") + "/")
        _check_folder(place)
        namespaces.check_source(place.url)
        # from the allowed folder downward, where no link is followed: what was resolved a moment ago may be a link by now
        top = folder or place
        below = place.path.removeprefix(top.path)
        return _Source(source, LocalObjects("/" + top.path, fsync=False, make=False), below, len(below), destination, top.url)
    namespaces.check_source(place.url)
    # relative to the last slash, as lakeFS has it: s3://bucket/a/b brings b/c, and s3://bucket/a/b/ brings c
    return _Source(source, stores.bucket(place), place.path, place.path.rfind("/") + 1, destination, place.root)


def _check_folder(place: Place) -> None:
    path = "/" + place.path
    if Path(path).is_dir():
        return
    if os.path.lexists(path.rstrip("/")):
        raise Conflict(f"{path.rstrip('/')} is not a folder; import it as an object")
    raise ObjectNotFound(f"{path} is not there; nothing was imported")


def _list(sources: Sequence[_Source], spool: Spool, skipped: Skipped, watch: Watch) -> int:
    """Put all of it into the spool, single objects behind the prefixes, as the later ones count. Returns the bytes."""
    size_bytes = 0
    for source in sources:
        if source.key:
            continue
        spool.start_run()
        before = spool.objects
        for page in source.store.list_pages(source.prefix, skipped=skipped):
            kept = _with_short_paths(source, page, skipped)
            size_bytes += sum(kept.sizes_bytes)
            if kept.keys:
                spool.add(imported.rows_of(kept, cut=source.cut, destination=source.destination, root=source.root))
            watch(spool.objects, skipped.count)
        if spool.objects == before:
            left_out = f" that can be named ({skipped.count} were left out)" if skipped.count else ""
            raise ObjectNotFound(
                f"{source.given.url!r} holds no objects{left_out}; nothing was imported, and {source.destination!r} is as it was"
            )
    singles = {source.given.destination: source for source in sources if source.key}
    if singles:
        spool.start_run()
    for path in sorted(singles):
        source = singles[path]
        found = _look(source)
        size_bytes += found.sizes_bytes[0]
        spool.add(imported.rows_of(found, cut=source.cut, destination=path, root=source.root))
        watch(spool.objects, skipped.count)
    return size_bytes


def _with_short_paths(source: _Source, page: ListedPage, skipped: Skipped) -> ListedPage:
    """Without those whose paths would be too long."""
    room = ids.PATH_BYTES_MAX - len(source.destination.encode())
    if max(map(len, page.keys), default=0) * 4 <= room:  # no character takes more than four bytes
        return page
    fits = [len(key[source.cut :].encode()) <= room for key in page.keys]
    if all(fits):
        return page
    for key, short in zip(page.keys, fits, strict=True):
        if not short:
            skipped.add(key, f"its path would have over {ids.PATH_BYTES_MAX} bytes")
    return page.where(fits)


def _look(source: _Source) -> ListedPage:
    """A single object. Raises ObjectNotFound."""
    if isinstance(source.store, LocalObjects):
        return _page(source.store.head(source.key))
    # a listing says what `head` does not: the ETag
    page = next(source.store.list_pages(source.key, skipped=Skipped()), None)
    if page is None or page.keys[:1] != [source.key]:
        raise ObjectNotFound(f"there is no object at {source.given.url!r}; nothing was imported")
    return page.where([True])


def _page(found: ObjectInfo) -> ListedPage:
    return ListedPage([found.key], [found.size_bytes], [found.mtime_ms], [""])


def _outermost(destinations: Sequence[str]) -> list[str]:
    """The prefixes without those that lie in another."""
    outer: list[str] = []
    for prefix in sorted(set(destinations)):
        if not outer or not prefix.startswith(outer[-1]):
            outer.append(prefix)
    return outer
