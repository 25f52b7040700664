"""Where a repository's namespace lies in the store that is pruned.

lakeFS calls a store by a URL of its own: `s3://bucket/folder` as refstore does, but `local://folder` for a folder below
one that only the server's configuration names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from refstore.core.redaction import redact_url
from refstore.errors import Invalid
from refstore.objects.store_urls import parse_store_url
from refstore_prune.sources.lakefs.committed import FOLDER

LOCAL: Final = "local://"
_SAME_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}


class NamespacePlace(NamedTuple):
    known_as: str
    """The pruned store, as lakeFS calls it, with a slash at its end."""
    store_url: str
    """The same as refstore calls it, without percent-encoding."""
    prefix: str
    """Of the namespace's keys in the store: '' or a path with a slash at its end."""
    namespace: str
    """As lakeFS calls it, with a slash at its end."""


def folder_url(url: str) -> str:
    """Return one spelling of the URL of a folder, with a slash at its end. Raises Invalid."""
    scheme, separator, path = url.partition("://")
    path = f"{path.removesuffix('/')}/" if path.strip("/") else ""
    if not separator or any(each in ("", ".", "..") for each in path.split("/")[:-1]):
        raise Invalid(f"{redact_url(url)!r} is no place that is understood here; it looks like s3://bucket/folder")
    return f"{_SAME_SCHEMES.get(scheme.lower(), scheme.lower())}://{path}"


def find_place(store_url: str, namespace: str, known_as: str, has_objects: Callable[[str], bool]) -> NamespacePlace:
    """Find a namespace in the store. `known_as`: how lakeFS calls the store; '': find out. `has_objects`: of a prefix.
    Raises Invalid: it does not lie there.
    """
    inner = folder_url(namespace)
    parsed = parse_store_url(store_url)
    own_url = f"{parsed.scheme}://{parsed.host}{parsed.path.rstrip('/')}/"
    if known_as:
        stores = [folder_url(known_as)]
    elif inner.startswith(LOCAL):
        stores = _guess_local(store_url, inner)
    else:
        stores = [own_url]
    for store in stores:
        prefix = inner.removeprefix(store)
        if inner.startswith(store) and has_objects(f"{prefix}{FOLDER}"):
            return NamespacePlace(store, own_url, prefix, f"{namespace.rstrip('/')}/")
    raise Invalid(
        f"the repository lies at {redact_url(namespace)}, and nothing of lakeFS ({FOLDER}) is found there in "
        f"{redact_url(store_url)}; prune the store that has it, or a folder above it. If lakeFS calls this store "
        "otherwise, say how: --property known_as=URL"
    )


def _guess_local(store_url: str, inner: str) -> list[str]:
    """Return what lakeFS may call a folder: the more of the namespace the folder's own path ends with, the earlier."""
    parsed = parse_store_url(store_url)
    if parsed.scheme != "file":
        raise Invalid(
            f"the repository lies in a folder of its server ({LOCAL}), and {redact_url(store_url)} is no folder; "
            "prune file:///FOLDER on the server's machine"
        )
    path = f"{parsed.path.rstrip('/')}/"
    segments = inner.removeprefix(LOCAL).split("/")[:-1]
    folders = ["".join(f"{each}/" for each in segments[:count]) for count in range(len(segments), -1, -1)]
    return [f"{LOCAL}{folder}" for folder in folders if path.endswith(f"/{folder}")]
