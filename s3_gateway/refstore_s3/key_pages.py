"""Read a page of a bucket's keys in order: of one ref where the prefix names it, otherwise across the refs.

`s3://REPOSITORY/` has the branches and tags as its first segments. Each page reads from the staging areas and ranges
what it needs, and is consistent within one ref.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice
from typing import Final, NamedTuple

from refstore.errors import InvalidName, InvalidPath, NotFound, RepositoryNotFound
from refstore.records.keys import LAST_CODE_POINT
from refstore.records.staging_records import Entry
from refstore.repository import Repository
from refstore_s3.targets import S3Bucket, decode_ref, encode_ref

STEM_NAMES_MAX: Final = 1000
"""How many refs with one stem are sorted together."""
EMPTY_REFS_MAX: Final = 100
"""How many refs without a key end a page."""
_STEM_END: Final = re.compile("[\x00-/]")
"""Of these characters the names of refs have `-`, `.` and `/`, and a key `%` as well."""
_BEHIND_SLASH: Final = chr(ord("/") + 1)
_CUT_ENCODING: Final = re.compile("%2?$")
"""The beginning of an encoded slash, where a prefix ends."""


class KeyRow(NamedTuple):
    """An object, or a common prefix (then `entry` is None)."""

    key: str
    entry: Entry | None


class KeyPage(NamedTuple):
    rows: list[KeyRow]
    next_after: str
    """The key after which the next page begins; '': there is none."""


class KeyQuery(NamedTuple):
    """Which keys are asked for: those with the prefix that come after `after`, folded at the delimiter."""

    prefix: str
    after: str
    amount: int
    delimiter: str


def read_keys(repo: Repository, bucket: S3Bucket, query: KeyQuery) -> KeyPage:
    """Return one page. A ref that is not there has no keys."""
    if query.amount == 0:
        return KeyPage([], "")
    if bucket.branch:
        return _read_ref(repo, bucket.branch, "", query)
    segment, slash, _ = query.prefix.partition("/")
    if slash:
        return _read_ref(repo, decode_ref(segment), f"{segment}/", query)
    return _read_refs(repo, query)


def _read_refs(repo: Repository, query: KeyQuery) -> KeyPage:
    """Return a page of all refs whose first segment has the prefix."""
    rows: list[KeyRow] = []
    empty_refs = 0
    for segment in _scan_segments(repo, query):
        folded = fold_segment(segment, query.prefix, query.delimiter)
        if folded:
            if folded > query.after and (not rows or rows[-1].key != folded):
                if len(rows) == query.amount:
                    return KeyPage(rows, rows[-1].key)
                rows.append(KeyRow(folded, None))
            continue
        left = query.amount - len(rows)
        if left == 0:
            return KeyPage(rows, rows[-1].key)
        page = _read_ref(repo, decode_ref(segment[:-1]), segment, query._replace(prefix=segment, amount=left))
        rows += page.rows
        if page.next_after:
            return KeyPage(rows, page.next_after)
        empty_refs += not page.rows
        if empty_refs == EMPTY_REFS_MAX:
            return KeyPage(rows, segment[:-1] + _BEHIND_SLASH)
    return KeyPage(rows, "")


def _scan_segments(repo: Repository, query: KeyQuery) -> Iterator[str]:
    """Yield the first segments of keys in order: `REF/` of each branch and tag that may have a key after `after`."""
    for segment in _scan_refs(repo, decode_ref(_CUT_ENCODING.sub("", query.prefix)), query.after):
        if segment.startswith(query.prefix) and segment + LAST_CODE_POINT > query.after:
            yield segment


def _scan_refs(repo: Repository, start: str, after: str) -> Iterator[str]:
    """Yield the segments of the refs whose names begin with `start`, in order, from somewhere before `after` on.

    The names of refs are read in their own order, in which a slash stands behind `-` and `.`, and not before them as
    its encoding does. So names that are equal up to the first of these characters are sorted together. Where they are
    many, those that go on with each of the characters are read apart, so that a page reads no more than it needs.
    """
    if after >= encode_ref(start) + LAST_CODE_POINT:
        return
    before = _find_place_before(start, after)
    while True:
        for stem, group in groupby(_scan_names(repo, start, before), partial(_find_stem, start=len(start))):
            names = [*islice(group, STEM_NAMES_MAX + 1)]
            if len(names) <= STEM_NAMES_MAX:
                yield from sorted({f"{encode_ref(name)}/" for name in names})
                continue
            for separator in "/-.":  # in the order of segments
                yield from _scan_refs(repo, stem + separator, after)
            if names[0] == stem:
                yield f"{encode_ref(stem)}/"
            before = f"{stem}/{LAST_CODE_POINT}"  # the others of the stem are not read
            break
        else:
            return


def _scan_names(repo: Repository, start: str, before: str) -> Iterator[str]:
    return heapq.merge(
        (str(name) for name, _ in repo.branches(prefix=start, after=before)),
        (str(name) for name, _ in repo.tags(prefix=start, after=before)),
    )


def _find_stem(name: str, start: int) -> str:
    """Return a ref's name up to the first `-`, `.` or `/` behind its `start`."""
    end = _STEM_END.search(name, start)
    return name[: end.start()] if end else name


def _find_place_before(start: str, after: str) -> str:
    """Return a name behind which all refs are that begin with `start` and may have a key after `after`."""
    begin = encode_ref(start)
    stem = start + _find_stem(after[len(begin) :], 0) if after.startswith(begin) else start
    if stem == start:
        return ""
    return stem[:-1] + chr(ord(stem[-1]) - 1) + LAST_CODE_POINT if stem.isascii() else stem  # no ref has such a name


def fold_segment(segment: str, prefix: str, delimiter: str) -> str:
    """Return the common prefix of all keys with the segment; '' where they are not folded within it."""
    at = segment.find(delimiter, len(prefix)) if delimiter else -1
    return "" if at < 0 else segment[: at + len(delimiter)]


def _read_ref(repo: Repository, ref: str, begin: str, query: KeyQuery) -> KeyPage:
    """Return a page of one ref, whose keys begin with `begin`."""
    after = query.after
    if after.startswith(begin):
        after = after[len(begin) :]
    elif after < begin:
        after = ""
    else:
        return KeyPage([], "")
    try:
        page = repo.list_page(
            ref, prefix=query.prefix[len(begin) :], after=after, amount=query.amount, delimiter=query.delimiter
        )
    except RepositoryNotFound:
        raise
    except (NotFound, InvalidName, InvalidPath):  # no such ref, or no path has the prefix
        return KeyPage([], "")
    rows = [KeyRow(begin + path, entry) for path, entry in page.results]
    return KeyPage(rows, begin + page.next_after if page.has_more else "")
