"""The namespaces of all repositories, and whether a URL lies in one, in any spelling that some program understands.

refstore deletes objects in a repository's namespace that the repository does not name. So no object in a namespace of
this lake may be named as a foreign one (staged, or imported): the name would not keep the object. One object has many
URLs, and the KV has one URL of each namespace. If a URL can be read in several ways, it lies in a namespace if one
reading does: to refuse a foreign object is a nuisance, to name an own one is a loss.

    s3://bucket/key                                   s3a://, s3n://; with %xx once or twice; with options behind it
    https://bucket.s3.region.amazonaws.com/key        the bucket is in the host's name, of any service, or is all of it
    https://endpoint/bucket/key                       the bucket is in the path; also s3://endpoint/bucket/key
    s3://arn:...:accesspoint/name/key, ...-s3alias    the bucket is not known, so the key alone decides
    anything://container/key                          of a third party's driver: the segments decide
    file:///directory/key                             also through symbolic links, bind mounts and case-insensitive
                                                      file systems
    local://name/key, mem://name/key                  lakeFS's: below the lake's own folder
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from refstore.core.redaction import redact_url
from refstore.errors import InvalidName, ObjectNotFound, WrongStore
from refstore.kv.base import KV
from refstore.objects.base import ObjectStore
from refstore.objects.named_stores import absolute_url
from refstore.objects.store_urls import child, parse_store_url
from refstore.records import keys
from refstore.records.repository_records import RepositoryRecord

OWN_FOLDER: Final = "_refstore"
"""Below the lake's root: the audit log's, and no repository's."""

NAMESPACE_OBJECT: Final = "_refstore/namespace"
"""This object names the repository that owns the namespace, because two lakes with different KVs must not share one."""

HOLDER_OBJECT: Final = "_refstore/holder"
"""This one names the file of the KV, where a copy of the lake's folder would share the store (`lake_identity.py`)."""

CLAIMS: Final = (HOLDER_OBJECT, NAMESPACE_OBJECT)
"""What says whose a namespace is."""

_SAME_STORE: Final = {"local": "file", "mem": "memory"}
_BUILT_IN: Final = ("file", "s3", "memory")
"""Stores of other drivers may have further names, under other schemes."""
_ACCESS_POINT: Final = re.compile(
    r"arn:.*|.*\.(?:s3-accesspoint|s3-object-lambda|mrap)\b.*|.*-s3alias|.*--ol-s3", re.DOTALL
)
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd-\uffff\ud800-\udfff]")
"""U+FFFD is among them: readers replace bytes that are not UTF-8 by it, and then two names are one."""
_ANY_BUCKET: Final = "*"
"""No bucket's name."""


class _UrlReading(NamedTuple):
    """One reading of a URL."""

    store: str
    """`s3`, `file`, `memory`, or a scheme that is none of ours."""
    root: str
    """The bucket in lower case, or the name of a memory store; '' for files."""
    segments: tuple[str, ...]
    is_below_lake: bool = False
    """Whether the path begins below the lake's own folder, whose name is not known here."""


class Namespaces:
    """The namespaces of one lake, read once for any number of URLs."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._by_url = {url: _read_namespace(url) for url in dict.fromkeys(folder_url(url) for url in urls)}
        self._inodes: dict[str, tuple[int, int] | None] | None = None

    @classmethod
    def read(cls, kv: KV, lake_url: str, *more: str) -> Namespaces:
        """Read the namespaces in the KV, also of deleted repositories until they are drained, and add `more`.
        `lake_url`: where the lake's own objects are.
        """
        return cls([*(absolute_url(url, lake_url) for url, _ in kv.scan_all(keys.NAMESPACES)), *more])

    def check_object(self, url: str) -> None:
        """Raise InvalidName if the object at `url` lies, or may lie, in a namespace of this lake.

        The message names no namespace: a caller who may stage in one repository need not know the others.
        """
        _check_segments(url)
        if self.find_holding(url) is not None:
            raise _inside_namespace(url)

    def check_source(self, url: str) -> None:
        """Raise InvalidName as `check_object`, and if a namespace lies below `url`, a prefix of many objects.

        On a file system this is true for listings that do not follow symbolic links.
        """
        self.check_object(url)
        if self.find_below(url) is not None:
            raise InvalidName(
                f"{redact_url(url)[:200]!r} holds a repository's namespace, where refstore deletes what nobody names; "
                "name folders beside it"
            )

    def find_holding(self, url: str) -> str | None:
        """Return the namespace that the object at `url` lies in, by some reading of the URL; None: in none."""
        places = list(_readings(url))
        name_of_reading = self._first_match(lambda namespace: any(_lies_in(place, namespace) for place in places))
        if name_of_reading is not None:
            return name_of_reading
        above = {inode for place in places if place.store == "file" for inode in _inodes_above(_path_of(place))}
        return next((name for name, inode in self._folders() if inode in above), None) if above else None

    def find_below(self, url: str) -> str | None:
        """Return a namespace that has objects whose URLs begin with `url`, by some reading; None: there is none."""
        places = list(_readings(url))
        whole = url.endswith("/")
        name_of_reading = self._first_match(
            lambda namespace: any(_is_beginning_of(place, namespace, whole=whole) for place in places)
        )
        if name_of_reading is not None:
            return name_of_reading
        # a prefix need not end where a segment does: what it begins in is the folder above
        real = [_real_prefix(_path_of(place), whole=whole) for place in places if place.store == "file"]
        for name, namespace in self._by_url.items():
            if namespace.store == "file" and any(
                f"{os.path.realpath(_path_of(namespace))}/".startswith(prefix) for prefix in real
            ):
                return name
        return None

    def _first_match(self, matches: Callable[[_UrlReading], bool]) -> str | None:
        return next((name for name, namespace in self._by_url.items() if matches(namespace)), None)

    def _folders(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the namespaces that are folders of this machine, with device and inode, which identify a folder."""
        if self._inodes is None:
            self._inodes = {
                name: _inode(_path_of(place)) for name, place in self._by_url.items() if place.store == "file"
            }
        return ((name, inode) for name, inode in self._inodes.items() if inode is not None)


def check_outside_lake(url: str, root: str) -> None:
    """Raise InvalidName as `Namespaces.check_object` does if the object at `url` lies, or may lie, below `root`, where
    the lake keeps its repositories.

    The answer is the same whether a repository lies there or not, so it tells nobody which repositories exist.
    """
    _check_segments(url)
    if any(place.is_below_lake for place in _readings(url)) or Namespaces((root,)).find_holding(url) is not None:
        raise _inside_namespace(url)


def folder_url(url: str) -> str:
    """Return the URL without its options, in one spelling, with one slash at the end, to compare it as a folder."""
    parsed = parse_store_url(url)
    host, path = parsed.host, parsed.path
    if parsed.scheme == "file":
        host, path = "", "/" + "/".join(segment for segment in path.split("/") if segment)
    return parsed._replace(host=host, path=path.rstrip("/"), options={}).text() + "/"


def owner_of(objects: ObjectStore) -> str | None:
    """Return the id of the repository that the namespace says it belongs to; None: it says nothing."""
    try:
        return objects.read(NAMESPACE_OBJECT).decode(errors="replace")
    except ObjectNotFound:
        return None


def check_owner(objects: ObjectStore, record: RepositoryRecord) -> None:
    """Raise WrongStore unless the namespace says that it is the repository's.

    That of a deleted repository may say nothing: the offline job deletes the object that says so last.
    """
    owner = owner_of(objects)
    if owner == record.id or (owner is None and record.closed_ms):
        return
    says = f"belongs to {owner[:120]!r}" if owner is not None else f"has no {NAMESPACE_OBJECT}"
    raise WrongStore(
        f"the namespace {redact_url(objects.url)} {says}, and is not that of repository {record.id!r}; check that its "
        "disk is mounted, and that its object store is reached by the right endpoint (`refstore config`). If it is the "
        f"right one, and has only lost that object, put it back with the text {record.id}"
    )


def check_new(url: str, root: str) -> None:
    """Raise InvalidName for a namespace that no new repository may have, in a lake whose objects lie below `root`.

    These are the root and the folders above it, which would leave no room for another repository; the folder that the
    lake keeps for itself; and names that stores read differently.
    """
    folder = folder_url(url)
    segments = parse_store_url(folder).path.strip("/").split("/")
    if any(_UNSAFE.search(segment) for segment in segments):
        raise InvalidName(
            f"{redact_url(url)[:200]!r} has a control character in it, or what is not UTF-8; name the folder in plain "
            "text"
        )
    if any(segment in (".", "..") for segment in segments) or (len(segments) > 1 and "" in segments):
        raise InvalidName(f"{redact_url(url)[:200]!r} has '.', '..' or nothing between slashes; name the folder itself")
    own = folder_url(child(root, OWN_FOLDER))
    if folder.casefold().startswith(own.casefold()):  # some file systems do not tell the two apart
        raise InvalidName(
            f"{redact_url(url)[:200]!r} lies in {own}, where the lake keeps its audit log; name a folder beside it"
        )
    if folder_url(root).startswith(folder):
        raise InvalidName(
            f"{redact_url(url)[:200]!r} is where the lake itself is, or holds it; name a folder of the repository's own"
        )


def _inside_namespace(url: str) -> InvalidName:
    return InvalidName(
        f"{redact_url(url)[:200]!r} lies in or beside a repository's namespace, where refstore deletes what nobody "
        "names; only data outside of the lake can be named so: upload it, link it, or copy it from its repository"
    )


def _check_segments(url: str) -> None:
    """Raise InvalidName for a path with `.` or `..`, which stores and readers resolve differently."""
    for spelling in _decode_segments(url):
        if any(segment in (".", "..") for segment in re.split(r"[/\\?#]", spelling.partition("://")[2])):
            raise InvalidName(f"{redact_url(url)[:200]!r} has '.' or '..' between slashes; give the object's own path")


def _decode_segments(url: str) -> list[str]:
    once = unquote(url)
    return list(dict.fromkeys((url, once, unquote(once))))


def _read_namespace(url: str) -> _UrlReading:
    parsed = parse_store_url(url)
    return _UrlReading(parsed.scheme, parsed.host.lower(), _segments(parsed.path))


def _segments(path: str) -> tuple[str, ...]:
    return tuple(segment for segment in re.split(r"[/\\]", path) if segment)


def _readings(url: str) -> Iterator[_UrlReading]:
    for spelling in _decode_segments(url):
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
            yield _UrlReading(store, first.lower(), tuple(others), is_below_lake=scheme == "mem")


def _file_readings(scheme: str, path: str) -> Iterator[_UrlReading]:
    segments = _segments(path)
    yield _UrlReading("file", "", segments, is_below_lake=scheme == "local")
    if scheme == "file" and not path.startswith("/"):
        yield _UrlReading("file", "", segments[1:])  # the first is a host, which most readers pass over


def _bucket_readings(scheme: str, rest: str) -> Iterator[_UrlReading]:
    first, *others = _segments(rest) or ("",)
    authority = first.rpartition("@")[2].lower()
    key = tuple(others)
    if _ACCESS_POINT.fullmatch(authority):
        yield _UrlReading("s3", _ANY_BUCKET, key)
        yield _UrlReading("s3", _ANY_BUCKET, key[1:])  # an ARN has the access point's name behind a slash
        return
    host = authority.partition(":")[0]
    yield _UrlReading("s3", host, key)
    for at, character in enumerate(host):
        if character == ".":
            yield _UrlReading("s3", host[:at], key)
    if key and (not scheme.startswith("s3") or authority != host or "." in host or host == "localhost"):
        yield _UrlReading("s3", key[0].rpartition(":")[2].lower(), key[1:])  # Ceph writes tenant:bucket


def _lies_in(place: _UrlReading, namespace: _UrlReading) -> bool:
    if place.is_below_lake:  # lakeFS clients name folders of the lake so, whatever its store is
        own = (namespace.root, *namespace.segments) if namespace.root else namespace.segments
        location = (place.root, *place.segments) if place.root else place.segments
        return any(location[:count] == own[-count:] for count in range(1, len(own) + 1))
    if namespace.store not in _BUILT_IN:
        names, own = _lower_names(place), _lower_names(namespace)
        return any(names[at : at + len(own)] == own for at in range(len(names)))
    if place.store != namespace.store:
        return False
    return (
        place.root in (namespace.root, _ANY_BUCKET) and place.segments[: len(namespace.segments)] == namespace.segments
    )


def _is_beginning_of(place: _UrlReading, namespace: _UrlReading, *, whole: bool) -> bool:
    """Return whether the namespace's URL begins with the place. `whole`: the place's last segment is complete."""
    if namespace.store not in _BUILT_IN:
        names, own = _lower_names(place), "/".join(_lower_names(namespace)) + "/"
        return any(own.startswith("/".join(names[at:]) + "/" * whole) for at in range(len(names)))
    if place.store != namespace.store or place.root not in (namespace.root, _ANY_BUCKET):
        return False
    text = "/".join(place.segments) + ("/" if whole and place.segments else "")
    return ("/".join(namespace.segments) + "/").startswith(text)


def _lower_names(place: _UrlReading) -> tuple[str, ...]:
    """Bucket and segments, in lower case: a bucket here is a segment in another URL."""
    return tuple(name.lower() for name in (place.root, *place.segments) if name)


def _path_of(place: _UrlReading) -> str:
    return "/" + "/".join(place.segments)


def _inode(path: str) -> tuple[int, int] | None:
    """Return device and inode; None if the path does not exist, or cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116  # through links, which is the point
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _inodes_above(path: str) -> Iterator[tuple[int, int]]:
    """Yield device and inode of the file that `path` leads to, and of all folders above it."""
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):  # a NUL, once decoded: no file has such a name
        return
    while True:
        inode = _inode(real)
        if inode is not None:
            yield inode
        # a text, as realpath gives it
        above = os.path.dirname(real)  # noqa: PTH120
        if above == real:
            return
        real = above


def _real_prefix(path: str, *, whole: bool) -> str:
    """Return `path` as a prefix of real paths."""
    try:
        # a text, whose last slash counts
        if whole or os.path.isdir(path):  # noqa: PTH112  # a text, as above
            return os.path.realpath(path).rstrip("/") + "/"
        folder, _, name = path.rpartition("/")
        return f"{os.path.realpath(folder or '/').rstrip('/')}/{name}"
    except (OSError, ValueError):
        return path
