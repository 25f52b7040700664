"""Which repository has which namespace, and whether a URL lies in one, in any spelling that some reader of URLs understands.

What a repository's namespace holds is deleted when the repository names it no more. So nothing in the namespace of any repository of this
lake may be named as if it were foreign (staged, or imported): the name would keep nobody from deleting the object. One object has many
URLs, and the KV holds one of them for each namespace. Where a URL can be read in several ways it lies in a namespace if one of them does:
to refuse a foreign object is a nuisance, to name one of our own is a loss.

    s3://bucket/key                                   s3a://, s3n://; with %xx once or twice; with options behind it
    https://bucket.s3.region.amazonaws.com/key        the bucket in the host's name, of whatever service, or as the whole of it
    https://endpoint/bucket/key                       the bucket in the path; s3://endpoint/bucket/key, too
    s3://arn:...:accesspoint/name/key, ...-s3alias    of which bucket it is is not known: then by the key alone
    file:///directory/key                             through symbolic links, bind mounts and case-insensitive file systems, too
    local://name/key, mem://name/key                  as lakeFS counts them: below the lake's own folder
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from refstore.errors import InvalidName
from refstore.kv.base import KV
from refstore.objects.urls import parse
from refstore.redaction import redact_url

NAMESPACES: Final = "namespaces"
"""The partition that says which repository has a namespace, by its URL as a folder (`as_folder`)."""

_SAME_STORE: Final = {"local": "file", "mem": "memory"}
_ACCESS_POINT: Final = re.compile(r"arn:.*|.*\.(?:s3-accesspoint|s3-object-lambda|mrap)\b.*|.*-s3alias|.*--ol-s3", re.DOTALL)
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd-\uffff\ud800-\udfff]")
"""U+FFFD: what is not UTF-8 is read as that, and then two names are one."""
_ANY_BUCKET: Final = "*"
"""No bucket's name."""


class _Place(NamedTuple):
    """One reading of a URL."""

    store: str
    """`s3`, `file`, `memory`, or a scheme that is none of ours."""
    root: str
    """The bucket in lower case, or the name of a memory store; '' for files."""
    segments: tuple[str, ...]
    below_the_lake: bool = False
    """Whether it begins below the lake's own folder, whose name is not known here."""


class Namespaces:
    """The namespaces of one lake, read once for any number of URLs."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._by_url = {url: _namespace(url) for url in dict.fromkeys(as_folder(url) for url in urls)}
        self._inodes: dict[str, tuple[int, int] | None] | None = None

    @classmethod
    def read(cls, kv: KV, *more: str) -> Namespaces:
        """Those that the KV knows, of deleted repositories as well until they are drained, and `more`."""
        return cls([*(url for url, _ in kv.scan_all(NAMESPACES)), *more])

    def check_object(self, url: str) -> None:
        """Raise InvalidName if the object at `url` lies in a namespace of this lake, or cannot be told to lie outside of all."""
        _check_segments(url)
        namespace = self.holding(url)
        if namespace is not None:
            raise InvalidName(
                f"{redact_url(url)[:200]!r} lies in {namespace}, a repository's namespace, where refstore deletes what nobody names;"
                " only data outside of the lake can be named so: upload it, link it, or copy it from its repository"
            )

    def check_source(self, url: str) -> None:
        """Raise InvalidName as `check_object`, and if a namespace lies below `url`, a prefix of many objects.

        On a file system that holds for whoever lists it without following symbolic links.
        """
        self.check_object(url)
        namespace = self.below(url)
        if namespace is not None:
            raise InvalidName(
                f"{redact_url(url)[:200]!r} holds {namespace}, a repository's namespace, where refstore deletes what nobody names;"
                " name folders beside it"
            )

    def holding(self, url: str) -> str | None:
        """The namespace that the object at `url` lies in, by some reading of the URL; None: in none."""
        places = list(_readings(url))
        found = self._first(lambda namespace: any(_lies_in(place, namespace) for place in places))
        if found is not None:
            return found
        above = {inode for place in places if place.store == "file" for inode in _inodes_above(_path(place))}
        return next((name for name, inode in self._folders() if inode in above), None) if above else None

    def below(self, url: str) -> str | None:
        """A namespace of which some object has a URL that begins with `url`, by some reading; None: there is none."""
        places = list(_readings(url))
        whole = url.endswith("/")
        found = self._first(lambda namespace: any(_begins(place, namespace, whole=whole) for place in places))
        if found is not None:
            return found
        # a prefix need not end where a segment does: what it begins in is the folder above
        real = [_real_prefix(_path(place), whole=whole) for place in places if place.store == "file"]
        for name, namespace in self._by_url.items():
            if namespace.store == "file" and any(f"{os.path.realpath(_path(namespace))}/".startswith(prefix) for prefix in real):
                return name
        return None

    def _first(self, matches: Callable[[_Place], bool]) -> str | None:
        return next((name for name, namespace in self._by_url.items() if matches(namespace)), None)

    def _folders(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The namespaces that are folders of this machine, and what tells a folder from all others, however it is reached."""
        if self._inodes is None:
            self._inodes = {name: _inode(_path(place)) for name, place in self._by_url.items() if place.store == "file"}
        return ((name, inode) for name, inode in self._inodes.items() if inode is not None)


def as_folder(url: str) -> str:
    """The URL without its options, in one spelling, with one slash at the end, so that prefixes compare as folders do."""
    parsed = parse(url)
    host, path = parsed.host, parsed.path
    if parsed.scheme == "file":
        host, path = "", "/" + "/".join(segment for segment in path.split("/") if segment)
    return parsed._replace(host=host, path=path.rstrip("/"), options={}).text() + "/"


def check_new(url: str, root: str) -> None:
    """Raise InvalidName for what no new repository may have as its namespace, in a lake whose objects lie below `root`: the root itself
    or what holds it, which would leave no room for another repository, and names that stores do not agree about."""
    folder = as_folder(url)
    segments = parse(folder).path.strip("/").split("/")
    if any(_UNSAFE.search(segment) for segment in segments):
        raise InvalidName(f"{redact_url(url)[:200]!r} has a control character in it, or what is not UTF-8; name the folder in plain text")
    if any(segment in (".", "..") for segment in segments) or (len(segments) > 1 and "" in segments):
        raise InvalidName(f"{redact_url(url)[:200]!r} has '.', '..' or nothing between slashes; name the folder itself")
    if as_folder(root).startswith(folder):
        raise InvalidName(f"{redact_url(url)[:200]!r} is where the lake itself is, or holds it; name a folder of the repository's own")


def _check_segments(url: str) -> None:
    """Raise InvalidName for a path that leads elsewhere than it says: stores and readers do not agree where."""
    for spelling in _decoded(url):
        if any(segment in (".", "..") for segment in re.split(r"[/\\?#]", spelling.partition("://")[2])):
            raise InvalidName(f"{redact_url(url)[:200]!r} has '.' or '..' between slashes; give the object's own path")


def _decoded(url: str) -> list[str]:
    once = unquote(url)
    return list(dict.fromkeys((url, once, unquote(once))))


def _namespace(url: str) -> _Place:
    parsed = parse(url)
    return _Place(parsed.scheme, parsed.host.lower(), _segments(parsed.path))


def _segments(path: str) -> tuple[str, ...]:
    return tuple(segment for segment in re.split(r"[/\\]", path) if segment)


def _readings(url: str) -> Iterator[_Place]:
    for spelling in _decoded(url):
        scheme, _, rest = spelling.partition("://")
        scheme = scheme.lower()
        store = _SAME_STORE.get(scheme, scheme)
        bare = re.split(r"[?#]", rest)[0]
        if store == "file":
            for path in dict.fromkeys((bare, rest)):  # a file's name may hold what ends a URL's path
                yield from _file_readings(scheme, path)
        elif store.startswith("s3") or store in ("http", "https"):
            yield from _bucket_readings(store, bare)
        else:
            first, *others = _segments(bare) or ("",)
            yield _Place(store, first.lower(), tuple(others), below_the_lake=scheme == "mem")


def _file_readings(scheme: str, path: str) -> Iterator[_Place]:
    segments = _segments(path)
    yield _Place("file", "", segments, below_the_lake=scheme == "local")
    if scheme == "file" and not path.startswith("/"):
        yield _Place("file", "", segments[1:])  # the first is a host, which most readers pass over


def _bucket_readings(scheme: str, rest: str) -> Iterator[_Place]:
    first, *others = _segments(rest) or ("",)
    authority = first.rpartition("@")[2].lower()
    key = tuple(others)
    if _ACCESS_POINT.fullmatch(authority):
        yield _Place("s3", _ANY_BUCKET, key)
        yield _Place("s3", _ANY_BUCKET, key[1:])  # an ARN has the access point's name behind a slash
        return
    host = authority.partition(":")[0]
    yield _Place("s3", host, key)
    for at, character in enumerate(host):
        if character == ".":
            yield _Place("s3", host[:at], key)
    if key and (not scheme.startswith("s3") or authority != host or "." in host or host == "localhost"):
        yield _Place("s3", key[0].rpartition(":")[2].lower(), key[1:])  # Ceph writes tenant:bucket


def _lies_in(place: _Place, namespace: _Place) -> bool:
    if place.below_the_lake:  # whatever the lake's store is: clients of lakeFS name their folders in it so
        own = (namespace.root, *namespace.segments) if namespace.root else namespace.segments
        given = (place.root, *place.segments) if place.root else place.segments
        return any(given[:count] == own[-count:] for count in range(1, len(own) + 1))
    if place.store != namespace.store:
        return False
    return place.root in (namespace.root, _ANY_BUCKET) and place.segments[: len(namespace.segments)] == namespace.segments


def _begins(place: _Place, namespace: _Place, *, whole: bool) -> bool:
    """`whole`: the place's last segment is a whole one."""
    if place.store != namespace.store or place.root not in (namespace.root, _ANY_BUCKET):
        return False
    text = "/".join(place.segments) + ("/" if whole and place.segments else "")
    return ("/".join(namespace.segments) + "/").startswith(text)


def _path(place: _Place) -> str:
    return "/" + "/".join(place.segments)


def _inode(path: str) -> tuple[int, int] | None:
    """None: it is not there, or cannot be looked at."""
    try:
        found = os.stat(path)  # noqa: PTH116  # through links, which is the point
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _inodes_above(path: str) -> Iterator[tuple[int, int]]:
    """Of what `path` leads to, and of all folders above that."""
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):  # a NUL, once decoded: no file has such a name
        return
    while True:
        inode = _inode(real)
        if inode is not None:
            yield inode
        above = os.path.dirname(real)  # noqa: PTH120
        if above == real:
            return
        real = above


def _real_prefix(path: str, *, whole: bool) -> str:
    """`path` as the beginning of real paths."""
    try:
        if whole or os.path.isdir(path):  # noqa: PTH112
            return os.path.realpath(path).rstrip("/") + "/"
        folder, _, name = path.rpartition("/")
        return f"{os.path.realpath(folder or '/').rstrip('/')}/{name}"
    except (OSError, ValueError):
        return path
