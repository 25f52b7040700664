"""Import: name any number of foreign objects in one commit, without reading their data.

    list     list the sources page by page into a temporary file of this machine; this may take long, and writes nothing
             to any store
    write    write ranges, metarange and commit record of the listed objects, as a merge does
    advance  move the head by one `set_if` on the branch record (rule 16: nothing may be staged)

Writing and advancing are one operation under its deadline. So ranges that no commit names yet are never older than the
longest operation, and the offline job leaves those alone. Foreign objects have no own address and no reference: neither
the reaper nor the offline job deletes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import deadline, ids
from refstore.core.ids import BranchName, CommitId
from refstore.core.redaction import redact_url
from refstore.core.units import sum_sizes
from refstore.errors import Conflict, ForeignNotAllowed, Invalid, ObjectNotFound, StoreMisconfigured
from refstore.namespaces import Namespaces
from refstore.objects.base import ObjectPage, ObjectStore, SkippedKeys
from refstore.objects.foreign_objects import AllowedPrefixes, ForeignLocation, ForeignStores, parse_location
from refstore.objects.local import LocalObjects
from refstore.operations import commit as commit_operation
from refstore.operations import refs
from refstore.operations.commit import CommitOptions
from refstore.public_types import Commit
from refstore.records.repository_records import ImportSource
from refstore.versioning.commits import import_spool
from refstore.versioning.commits.path_filter import outermost_prefixes
from refstore.versioning.commits.sorted_runs import SortedRuns

ProgressCallback = Callable[[int, int], None]
"""Called with the number of objects listed so far, and of those left out. If it raises, the import ends, and nothing
lands.
"""

SOURCES_MAX: Final = 1000
"""How many sources one import may have."""

SKIPPED_NOTE: Final = "skipped"
"""The note of a commit that says how many names of the sources are not in it."""


class ImportResult(NamedTuple):
    """The commit that an import made, and its counts."""

    commit: Commit | None
    """None: it was a dry run."""
    objects: int
    size_bytes: int
    existing_paths: int
    """How many paths the destinations had before."""
    removed_paths: int
    """How many of those the branch lost because they were not imported again; 0 in a dry run."""
    skipped_objects: int
    """How many entries of the sources cannot be named: links, and names that are no paths."""
    skipped_examples: tuple[tuple[str, str], ...]
    """(name, why it was left out) of the first few."""


class _ImportListing(NamedTuple):
    """Where to list a source, and how its keys become paths and addresses."""

    source: ImportSource
    store: ObjectStore
    prefix: str
    prefix_length: int
    destination: str
    root: str
    key: str = ""
    """The key of a single object; '' for a prefix."""


def ignore_progress(_objects: int, _skipped: int) -> None:
    return


def import_objects(
    ctx: Context,
    branch: BranchName,
    sources: Sequence[ImportSource],
    options: CommitOptions,
    *,
    only_allowed: bool = False,
    watch: ProgressCallback = ignore_progress,
    about_to_land: Callable[[CommitId], None] = lambda _commit: None,
    dry_run: bool = False,
) -> ImportResult:
    """Replace the entries at the destinations by names of the sources' objects, in one commit.

    If two sources have one path, a single object wins over a prefix, and a later source over an earlier one.
    `only_allowed`: sources must lie below `import_from`, or this raises ForeignNotAllowed; otherwise they may lie
    anywhere but in a namespace of this lake, as the caller names them itself. `about_to_land` is called with the
    commit's id before the branch is moved. The commit says how many names were left out, in its message and its
    notes.

    Raises Invalid (there is no source, or a source or destination is none), ObjectNotFound (a source holds nothing),
    DirtyBranch, NothingToCommit, BranchNotFound, Unavailable, Contention. Nothing is changed then.
    """
    planned = prepare_sources(ctx, sources, only_allowed=only_allowed)
    prefixes = outermost_prefixes(source.destination for source in planned if not source.key)
    commit_operation.check_clean(ctx, branch)
    skipped = SkippedKeys()
    spool = import_spool.new_spool(lambda: watch(spool.rows, skipped.count))
    with spool:
        try:
            size_bytes = _list_sources(planned, spool, skipped, watch)
        except StoreMisconfigured as error:  # the source's, which is not this lake's to mend
            raise Invalid(f"nothing was imported, as the source cannot be read: {error}") from error
        totals = spool.rows, size_bytes
        left_out = skipped.count, tuple(skipped.examples)
        with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            if dry_run:
                head = refs.resolve(ctx, branch).commit
                return ImportResult(
                    None,
                    *totals,
                    ctx.trees.count_below(refs.get_commit(ctx, head).metarange, prefixes),
                    0,
                    *left_out,
                )
            noted = _with_skipped_count(options, skipped.count)
            new, tree = commit_operation.commit_replacement(ctx, branch, noted, spool, prefixes, about_to_land)
        existing_count = tree.replaced_entries + tree.removed_entries + tree.unchanged_entries
        return ImportResult(new, *totals, existing_count, tree.removed_entries, *left_out)


def _with_skipped_count(options: CommitOptions, count: int) -> CommitOptions:
    """Write into the commit how many names were left out: lakeFS's clients show nothing else that could say so."""
    if not count:
        return options
    names = "1 name of the source was" if count == 1 else f"{count:,} names of the source were"
    noted = replace(options, message=f"{options.message} ({names} left out)")
    return noted.with_notes({SKIPPED_NOTE: str(count)})


def prepare_sources(ctx: Context, sources: Sequence[ImportSource], *, only_allowed: bool) -> list[_ImportListing]:
    """Check the sources, and prepare to list them. Raises what `import_objects` raises for a source."""
    if not sources:
        raise Invalid("an import needs at least one source; name a prefix, or an object, and its destination")
    if len(sources) > SOURCES_MAX:
        raise Invalid(
            f"an import has at most {SOURCES_MAX:,} sources, this one {len(sources):,}; make several imports of them"
        )
    namespaces = Namespaces.read(ctx.kv, ctx.foreign.objects_url)
    allowed = ctx.foreign.allowed if only_allowed else None
    return [_prepare_source(source, namespaces, ctx.foreign.stores, allowed) for source in sources]


def _prepare_source(
    source: ImportSource, namespaces: Namespaces, stores: ForeignStores, allowed: AllowedPrefixes | None
) -> _ImportListing:
    place = parse_location(source.url).resolve_links()
    folder = None
    if allowed is not None:
        if place.options:  # otherwise a caller could make this process send its credentials to the caller's own server
            raise Invalid(f"{place.url[:200]!r} has options; leave them out: the operator sets how a bucket is reached")
        folder = allowed.find_covering(place)
        if folder is None:
            raise ForeignNotAllowed(f"{source.url[:200]!r} cannot be imported: {allowed.refusal}")
    if source.is_object:
        ids.object_path(source.destination)
        namespaces.check_object(place.url)
        store, key = stores.find_store(place, folder)
        # of a file the store begins above it, and the address above that
        root = ForeignLocation(place.kind, place.bucket, place.path.removesuffix(key)).url
        return _ImportListing(source, store, "", len(key), source.destination, root, key)
    destination = source.destination
    if destination and not destination.endswith("/"):
        destination += "/"
    ids.path_prefix(destination)
    if place.kind == "file":
        place = place._replace(path=place.path.rstrip("/") + "/")
        _check_is_folder(place, source.url)
        namespaces.check_source(place.url)
        # from the allowed folder downward, where no link is followed: what was resolved a moment ago may be a link by
        # now
        top = folder or place
        below = place.path.removeprefix(top.path)
        return _ImportListing(
            source, LocalObjects("/" + top.path, fsync=False, make=False), below, len(below), destination, top.url
        )
    namespaces.check_source(place.url)
    # relative to the last slash, as lakeFS has it: s3://bucket/a/b brings b/c, and s3://bucket/a/b/ brings c
    return _ImportListing(
        source, stores.open_bucket(place), place.path, place.path.rfind("/") + 1, destination, place.root
    )


def _check_is_folder(place: ForeignLocation, url: str) -> None:
    """Raise what `import_objects` raises unless the place is a folder. `url`: the place as it was given, which alone is
    shown: where its links lead is not every caller's business.
    """
    path = "/" + place.path
    shown = redact_url(url)[:200]
    try:
        if Path(path).is_dir():
            return
    except OSError as error:  # the name is too long, or a folder above it may not be read
        raise Invalid(f"{shown!r} cannot be read ({error.strerror}); nothing was imported") from None
    if os.path.lexists(path.rstrip("/")):
        raise Conflict(f"{shown!r} is not a folder; import it as an object")
    raise ObjectNotFound(f"{shown!r} is not there; nothing was imported")


def _list_sources(
    sources: Sequence[_ImportListing], spool: SortedRuns, skipped: SkippedKeys, watch: ProgressCallback
) -> int:
    """List all sources into the spool, single objects last because later rows win, and return the bytes."""
    size_bytes = 0
    for source in sources:
        if source.key:
            continue
        spool.start_run()
        before = spool.rows
        for page in source.store.list_pages(source.prefix, skipped=skipped):
            fitting = _drop_invalid_paths(source, page, skipped)
            size_bytes = sum_sizes((size_bytes, *fitting.sizes_bytes))
            if fitting.keys:
                spool.add(
                    import_spool.rows_of(
                        fitting, cut=source.prefix_length, destination=source.destination, root=source.root
                    )
                )
            watch(spool.rows, skipped.count)
        if spool.rows == before:
            left_out = f" that can be named ({skipped.count} were left out)" if skipped.count else ""
            raise ObjectNotFound(
                f"{source.source.url!r} holds no objects{left_out}; nothing was imported, and {source.destination!r} "
                "is as it was"
            )
    singles = {source.source.destination: source for source in sources if source.key}
    if singles:
        spool.start_run()
    for path in sorted(singles):
        source = singles[path]
        listed = _list_single(source)
        size_bytes = sum_sizes((size_bytes, listed.sizes_bytes[0]))
        spool.add(import_spool.rows_of(listed, cut=source.prefix_length, destination=path, root=source.root))
        watch(spool.rows, skipped.count)
    return size_bytes


def _drop_invalid_paths(source: _ImportListing, page: ObjectPage, skipped: SkippedKeys) -> ObjectPage:
    """Return the page without the objects whose paths would be too long, or begin with a slash."""
    if not source.destination and any(key.startswith("/", source.prefix_length) for key in page.keys):
        for key in page.keys:
            if key.startswith("/", source.prefix_length):
                skipped.add(key, "its path would begin with '/'; import it below a folder")
        page = page.select([not key.startswith("/", source.prefix_length) for key in page.keys])
    room = ids.PATH_BYTES_MAX - len(source.destination.encode())
    if max(map(len, page.keys), default=0) * 4 <= room:  # no character takes more than four bytes
        return page
    fits = [len(key[source.prefix_length :].encode()) <= room for key in page.keys]
    if all(fits):
        return page
    for key, short in zip(page.keys, fits, strict=True):
        if not short:
            skipped.add(key, f"its path would have over {ids.PATH_BYTES_MAX} bytes")
    return page.select(fits)


def _list_single(source: _ImportListing) -> ObjectPage:
    """List a single object. Raises ObjectNotFound."""
    if isinstance(source.store, LocalObjects):
        info = source.store.head(source.key)
        return ObjectPage([info.key], [info.size_bytes], [info.mtime_ms], [""])
    # a listing says what `head` does not: the ETag
    page = next(source.store.list_pages(source.key, skipped=SkippedKeys()), None)
    if page is None or page.keys[:1] != [source.key]:
        raise ObjectNotFound(f"there is no object at {source.source.url!r}; nothing was imported")
    return page.select([True])
