"""Where a repository's namespace lies in the store that is pruned.

lakeFS calls a store by a URL of its own: `s3://bucket/folder` as refstore does, but `local://folder` for a folder below
one that only the server's configuration names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from refstore.core.redaction import redact_url
from refstore.errors import Corrupt, Invalid
from refstore.objects.store_urls import parse_store_url
from refstore_prune.sources.lakefs.committed import FOLDER

LOCAL: Final = "local"
_SAME_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}


class Folder(NamedTuple):
    """A folder as lakeFS calls it."""

    scheme: str
    segments: tuple[str, ...]
    """The bucket first, where there is one."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{''.join(f'{each}/' for each in self.segments)}"

    @classmethod
    def from_url(cls, url: str) -> Folder:
        """Raises Invalid."""
        scheme, separator, path = url.partition("://")
        segments = tuple(path.removesuffix("/").split("/")) if path.strip("/") else ()
        if not separator or any(each in ("", ".", "..") for each in segments):
            raise Invalid(f"{redact_url(url)!r} is no place that is understood here; it looks like s3://bucket/folder")
        return cls(_SAME_SCHEMES.get(scheme.lower(), scheme.lower()), segments)

    def find_below(self, inner: Folder) -> str | None:
        """Return the path from here to a folder: '' or one that ends with a slash; None: it does not lie here."""
        count = len(self.segments)
        if inner.scheme != self.scheme or inner.segments[:count] != self.segments:
            return None
        return "".join(f"{each}/" for each in inner.segments[count:])


class NamespacePlace(NamedTuple):
    store: Folder
    """The pruned store, as lakeFS calls it."""
    prefix: str
    """Of the namespace's keys in the store: '' or a path with a slash at its end."""
    namespace: str
    """As lakeFS calls it, with a slash at its end."""
    store_url: str
    """As refstore calls it, with a slash at its end, and without percent-encoding."""

    def find_key(self, location: str) -> str:
        """Return the key of one of lakeFS's own files. Raises Corrupt."""
        if not location.startswith(self.namespace):
            raise Corrupt(
                f"lakeFS says that it wrote {redact_url(location)!r}, and its namespace is {self.namespace!r}; check "
                "the version of the server"
            )
        return self.prefix + location.removeprefix(self.namespace)


def find_place(store_url: str, namespace: str, known_as: str, has_objects: Callable[[str], bool]) -> NamespacePlace:
    """Find a namespace in the store. `known_as`: how lakeFS calls the store; '': find out. `has_objects`: of a prefix.
    Raises Invalid: it does not lie there.
    """
    inner = Folder.from_url(namespace)
    parsed = parse_store_url(store_url)
    if known_as:
        stores = [Folder.from_url(known_as)]
    elif inner.scheme == LOCAL:
        stores = _guess_local(store_url, inner)
    else:
        segments = tuple(each for each in (parsed.host, *parsed.path.split("/")) if each)
        stores = [Folder(parsed.scheme, segments)]
    for store in stores:
        prefix = store.find_below(inner)
        if prefix is not None and has_objects(f"{prefix}{FOLDER}"):
            own_url = f"{parsed.scheme}://{parsed.host}{parsed.path.rstrip('/')}/"
            return NamespacePlace(store, prefix, f"{namespace.rstrip('/')}/", own_url)
    raise Invalid(
        f"the repository lies at {redact_url(namespace)}, and nothing of lakeFS ({FOLDER}) is found there in "
        f"{redact_url(store_url)}; prune the store that has it, or a folder above it. If lakeFS calls this store "
        "otherwise, say how: --property known_as=URL"
    )


def _guess_local(store_url: str, inner: Folder) -> list[Folder]:
    """Return what lakeFS may call a folder: the more of the namespace the folder's own path ends with, the earlier."""
    parsed = parse_store_url(store_url)
    if parsed.scheme != "file":
        raise Invalid(
            f"the repository lies in a folder of its server ({LOCAL}://), and {redact_url(store_url)} is no folder; "
            "prune file:///FOLDER on the server's machine"
        )
    path = tuple(each for each in parsed.path.split("/") if each)
    counts = range(len(inner.segments), -1, -1)
    return [Folder(LOCAL, inner.segments[:n]) for n in counts if path[len(path) - n :] == inner.segments[:n]]
