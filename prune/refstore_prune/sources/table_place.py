"""What sources of tables have in common: batches of names, and where a table lies, whatever the spelling of its URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from refstore.core.arrow_arrays import make_array
from refstore.core.batches import split_batches
from refstore.objects.store_urls import parse_store_url
from refstore_gc.untyped_arrow import pa
from refstore_prune.sources.base import BATCH_NAMES, NameBatch


def batch_names(names: Iterable[str]) -> Iterator[NameBatch]:
    for batch in split_batches(names, BATCH_NAMES):
        yield make_array(batch, pa.string())


def hidden_files(folder: str, *seen: str) -> str:
    """Return a regular expression of keys in a folder that engines and cleaners take for none of a table's: a name of
    theirs, of a file or a folder, begins with a dot or `_`, and is none of a partition, nor one of `seen`.
    """
    others = "|".join([r"_[^/=]+=[^/]*/", *seen])
    return rf"{re.escape(folder)}(?s:.*/)?(?!{others})[._]"


def place_of(url: str) -> str:
    """Return one spelling of the URL or absolute path of a folder, as tables write it: without percent-encoding."""
    scheme, colon, path = url.partition(":")
    if not colon or url.startswith("/"):
        scheme, path = "file", url
    return "/".join(("s3:" if scheme in ("s3a", "s3n") else f"{scheme}:", *filter(None, path.split("/"))))


def place_in_store(store_url: str, folder: str) -> str:
    """Return the spelling of `place_of` for a folder of a store."""
    store = parse_store_url(store_url)
    return place_of(f"{store.scheme}:{store.host}/{store.path}/{folder}")


def folders_in_store(store_url: str, *folders: str) -> tuple[str, ...]:
    """Return what of some folders lies in a store, as `NameSource.folders`: '' if the store lies in one of them.
    `folders`: their URLs or paths.
    """
    found: set[str] = set()
    store, *places = map(_follow_links, (place_in_store(store_url, ""), *map(place_of, filter(None, folders))))
    for place in places:
        if f"{store}/".startswith(f"{place}/"):
            found.add("")
        elif place.startswith(f"{store}/"):
            found.add(f"{place.removeprefix(f'{store}/')}/")
    return tuple(sorted(found))


def _follow_links(place: str) -> str:
    return f"file:{os.path.realpath(place.removeprefix('file:') or '/')}" if place.startswith("file:") else place
