"""Compares where tables lie, whatever the spelling of their URLs."""

from __future__ import annotations

from typing import Final

from refstore.objects.store_urls import parse_store_url

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}


def place_of(url: str) -> str:
    """Return one spelling of the URL or absolute path of a folder, as tables write it: without percent-encoding."""
    scheme, colon, path = url.partition(":")
    if not colon or url.startswith("/"):
        scheme, path = "file", url
    return "/".join((f"{_SCHEMES.get(scheme, scheme)}:", *filter(None, path.split("/"))))


def place_in_store(store_url: str, folder: str) -> str:
    """Return the spelling of `place_of` for a folder of a store."""
    store = parse_store_url(store_url)
    return place_of(f"{store.scheme}:{store.host}/{store.path}/{folder}")
