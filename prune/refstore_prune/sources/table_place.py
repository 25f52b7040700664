"""What sources of tables have in common: batches of names, and where a table lies, whatever the spelling of its URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

from refstore.core.arrow_arrays import make_array
from refstore.core.batches import split_batches
from refstore.objects.store_urls import parse_store_url
from refstore_gc.untyped_arrow import pa
from refstore_prune.sources.base import BATCH_NAMES, NameBatch

NOWHERE: Final = "/"
"""The folder of a table that lies elsewhere: no key begins so."""


def batch_names(names: Iterable[str]) -> Iterator[NameBatch]:
    for batch in split_batches(names, BATCH_NAMES):
        yield make_array(batch, pa.string())


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


def folder_in_store(store_url: str, table: str) -> str:
    """Return the folder of a table in a store, as `NameSource.folder`: what lies beside the table is not the table's to
    name. `table`: its URL or path.
    """
    store, inner = place_in_store(store_url, ""), place_of(table)
    if store.startswith("file:"):
        store, inner = (f"file:{os.path.realpath(each.removeprefix('file:'))}" for each in (store, inner))
    if f"{store}/".startswith(f"{inner}/"):
        return ""
    return f"{inner.removeprefix(f'{store}/')}/" if inner.startswith(f"{store}/") else NOWHERE
