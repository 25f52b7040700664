"""Stop a run before its mark stands, where what it found is more likely a mistake than garbage.

Each check says what it compared, with examples, and what to do: correct the mistake, or consent by the check's word.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

from refstore.core.clock import format_utc
from refstore.errors import ObjectsRefused, PruneStopped
from refstore.lake_identity import LAKE_OBJECT
from refstore.namespaces import NAMESPACE_OBJECT
from refstore.objects import open_objects
from refstore.objects.base import ObjectStore
from refstore.objects.object_keys import key_fault
from refstore.objects.store_urls import parse_store_url
from refstore_gc.run_context import BreakerLimits
from refstore_gc.run_summary import ObjectCount
from refstore_prune.compare import Comparison, SourceCount
from refstore_prune.inventory import AGE_MAX
from refstore_prune.list_store import PLACES_MAX, IntervalFacts
from refstore_prune.prune_layout import PruneManifest
from refstore_prune.sources.base import NameSource

NO_CONSENT: Final = "no-consent-possible"
FEWER_NAMES: Final = "fewer-names"
FEW_FOUND: Final = "few-found"
LARGE_SHARE: Final = "large-share"
UNREAD_METADATA: Final = "unread-metadata"
MIN_AGE: Final = "min-age"
OLD_INVENTORY: Final = "old-inventory"
CONSENT_WORDS: Final = (FEWER_NAMES, FEW_FOUND, LARGE_SHARE, UNREAD_METADATA, MIN_AGE, OLD_INVENTORY)

FEWER_SHARE: Final = 0.2
FEWER_OF_SOURCE: Final = 0.9
"""Less would stop a run when the log of a table is cleaned up: the same names stand there several times before."""
FOUND_SHARE: Final = 0.5
LOOKED_UP_MIN: Final = 4
"""Of how many names of a source none may be missing by chance."""
_EXAMPLES_MAX: Final = 5
_SEGMENTS_MAX: Final = 12


class FailedCheck(NamedTuple):
    word: str
    """Of the consent; or `NO_CONSENT`."""
    message: str


def refuse(failed: Iterable[FailedCheck], consent: Collection[str]) -> None:
    """Raises PruneStopped: a check failed, and the caller does not consent."""
    left = [each for each in failed if each.word not in consent or each.word == NO_CONSENT]
    if left:
        advice = " ".join(f"--consent {each.word}" for each in left)
        wise = f"; correct it, or if it is meant so, use {advice}" if NO_CONSENT not in advice else ""
        text = "; ".join(each.message for each in left)
        raise PruneStopped(f"{text}. Nothing was marked{wise}", [each.word for each in left])


# ---- before anything is listed


def check_min_age(min_age: timedelta | None, sources: Sequence[NameSource]) -> Iterator[FailedCheck]:
    longest = max(sources, key=lambda source: source.min_age)
    if min_age is not None and min_age < longest.min_age:
        yield FailedCheck(
            MIN_AGE,
            f"the minimum age is {min_age}, and names of {longest.text} may come {longest.min_age} after their objects",
        )


def check_owners_above(store_url: str) -> tuple[list[FailedCheck], list[str]]:
    """Look for a namespace or a lake of refstore at the store and above it. Return what could not be looked at, too."""
    found: list[str] = []
    unseen: list[str] = []
    for url in [store_url, *_folders_above(store_url)]:
        for key in (NAMESPACE_OBJECT, LAKE_OBJECT):
            try:
                if _is_there(url, key):
                    found.append(f"{url.partition('?')[0].rstrip('/')}/{key}")
            except ObjectsRefused:
                if url != store_url:  # there the listing tells
                    unseen.append(f"whether refstore owns {url.partition('?')[0]}: this may not be read there")
                break
    return _check_owners(found), unseen


def _check_owners(objects: Sequence[str]) -> list[FailedCheck]:
    message = f"refstore owns data here ({', '.join(objects[:_EXAMPLES_MAX])}); `refstore gc` collects its garbage"
    return [FailedCheck(NO_CONSENT, message)] if objects else []


def _folders_above(store_url: str) -> Iterator[str]:
    url = parse_store_url(store_url)
    if url.scheme in ("s3", "file"):
        for path in {url.path, os.path.realpath(url.path) if url.scheme == "file" else url.path}:
            segments = [segment for segment in path.split("/") if segment]
            for end in range(len(segments) - 1, -1, -1):
                yield url._replace(path="/" + "/".join(segments[:end])).text()


def _is_there(url: str, key: str) -> bool:
    parsed = parse_store_url(url)
    if parsed.scheme == "file":
        with suppress(OSError):
            return (Path(parsed.path) / key).exists()
        return False
    store = open_objects(url)
    try:
        return store.head_many([key])[0] is not None
    finally:
        store.close()


# ---- when all is listed and read


def check_inventory_age(as_of_ms: int, now_ms: int) -> Iterator[FailedCheck]:
    """`as_of_ms`: when the inventory was made; 0: there is none."""
    if as_of_ms and now_ms - as_of_ms > AGE_MAX // timedelta(milliseconds=1):
        yield FailedCheck(
            OLD_INVENTORY,
            f"the inventory is of {format_utc(as_of_ms)}, over {AGE_MAX.days} days ago: tables, repositories and lakes "
            "that were made since are not in it",
        )


def check_comparison(
    store: ObjectStore,
    found: Comparison,
    facts: IntervalFacts,
    sources: Sequence[NameSource],
    last: PruneManifest | None,
    limits: BreakerLimits,
) -> Iterator[FailedCheck]:
    """Yield the checks that fail."""
    yield from _check_owners(facts.namespaces)
    yield from _check_metadata(facts, sources, store.url)
    if not found.names:
        read = sum(count.read for count in found.by_source.values())
        elsewhere = f"; {found.outside:,} are of objects elsewhere, {_examples(found.outside_examples)}"
        hint = suggest_spelling(store, found.outside_examples)
        yield FailedCheck(
            NO_CONSENT,
            f"there is no name of an object in {store.url}, of {read:,} that were read"
            + (f"{elsewhere}{hint}" if found.outside else ""),
        )
        return
    if last is not None:
        yield from _check_fewer(found, sources, last)
    kept = found.counts["named"].objects
    if kept < found.names * FOUND_SHARE:
        yield FailedCheck(
            FEW_FOUND,
            f"of {found.names:,} names in {store.url} only {kept:,} objects were listed; not there: "
            f"{_examples(found.not_found)}{suggest_spelling(store, found.not_found)}",
        )
    elif len(sources) > 1:
        yield from _check_each_source(found, sources, store.url)
    yield from _check_share(found.counts["unnamed"], facts.listed, limits)


def names_by_source(found: Comparison, sources: Sequence[NameSource]) -> dict[str, int]:
    """Return how many names in the store each source has, by its text, each as often as it was read."""
    counts: dict[str, int] = {}
    for number, source in enumerate(sources):
        count = found.by_source.get(number, SourceCount())
        counts[source.text] = counts.get(source.text, 0) + count.read - count.outside
    return counts


def _check_fewer(found: Comparison, sources: Sequence[NameSource], last: PruneManifest) -> Iterator[FailedCheck]:
    """Yield a check that compares the names with those of the last mark: all of them, and those of each source. Where a
    source has another text than then, such as a list with a date, it is compared with the one in whose place it is.
    """
    if found.names < last.names * (1 - FEWER_SHARE):
        text = f"there are {found.names:,} names, and run {last.run_id} had {last.names:,}: over a fifth is gone"
        yield FailedCheck(FEWER_NAMES, text)
        return
    counts = names_by_source(found, sources)
    others = (text for text in counts if text not in last.names_by_source)
    for text, before in last.names_by_source.items() if len(last.names_by_source) > 1 else ():
        now = text if text in counts else next(others, "")
        if counts.get(now, 0) < before * (1 - FEWER_OF_SOURCE):
            has = f"{now} has {counts[now]:,}: over nine tenths are gone" if now else "is not given now"
            yield FailedCheck(FEWER_NAMES, f"{text} had {before:,} names in run {last.run_id}, and {has}")


def _check_each_source(found: Comparison, sources: Sequence[NameSource], store_url: str) -> Iterator[FailedCheck]:
    """Yield a check for each source of which nothing is in the store, as its names have another prefix or spelling."""
    for number, source in enumerate(sources):
        count = found.by_source.get(number, SourceCount())
        if count.read == count.outside or (count.looked_up >= LOOKED_UP_MIN and not count.found):
            yield FailedCheck(
                FEW_FOUND,
                f"of {count.read:,} names of {source.text} {count.outside:,} are of objects elsewhere, and of "
                f"{count.looked_up} others that were looked up in {store_url} {count.found} are there",
            )


def _check_share(unnamed: ObjectCount, listed: ObjectCount, limits: BreakerLimits) -> Iterator[FailedCheck]:
    if unnamed.objects < limits.floor_objects:
        return
    if unnamed.objects > limits.share_max * listed.objects or unnamed.bytes > limits.share_max * listed.bytes:
        yield FailedCheck(
            LARGE_SHARE,
            f"{unnamed.objects:,} of {listed.objects:,} objects, with {unnamed.bytes:,} of {listed.bytes:,} bytes, are "
            f"unnamed: over the share of {limits.share_max:g} that --share-max allows",
        )


def _check_metadata(facts: IntervalFacts, sources: Sequence[NameSource], store_url: str) -> Iterator[FailedCheck]:
    places = facts.places.union(*(source.metadata_elsewhere() for source in sources))
    unread = [place for place in places if not any(source.reads_metadata(place, store_url) for source in sources)]
    has_more = len(facts.places) > PLACES_MAX
    if unread or has_more:
        many = f", and there are over {PLACES_MAX:,}" if has_more else ""
        examples = sorted(f"{place.folder or '.'} ({place.kind})" for place in unread)
        yield FailedCheck(
            UNREAD_METADATA,
            f"{len(unread):,} tables or repositories below {store_url} have metadata that no source of names reads: "
            f"{_examples(examples)}{many}; add a source for each",
        )


def suggest_spelling(store: ObjectStore, names: Sequence[str]) -> str:
    """Return what to say of names that were not found, if what follows some of their folders is a key."""
    with suppress(ObjectsRefused):  # who may only list gets no hint
        for name in names[:_EXAMPLES_MAX]:
            segments = [segment for segment in name.split("/") if segment]
            shorter = ["/".join(segments[at:]) for at in range(len(segments))][:_SEGMENTS_MAX]
            keys = [key for key in shorter if key != name and key_fault(key) is None]
            for key, info in zip(keys, store.head_many(keys), strict=True):
                if info is not None:
                    return f"; {key!r} is in the store, so the names begin with {name[: -len(key)]!r} too much"
    return ""


def _examples(texts: Sequence[str]) -> str:
    return ", ".join(repr(text) for text in texts[:_EXAMPLES_MAX])
