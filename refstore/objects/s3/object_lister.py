"""List objects, and check every page: its keys lie below the prefix, are in order, and are as many as it says. Only the
server ends the listing.

A listing decides which objects may be deleted and which are missing. If a server, a proxy or a cut connection made it
shorter or mixed it up, it raises. It never ends early.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from refstore.errors import ObjectsUnavailable
from refstore.objects.base import ObjectPage, SkippedKeys
from refstore.objects.object_keys import key_fault
from refstore.objects.s3.client import Bucket

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

_EMPTY_PAGES_MAX: Final = 100
"""Empty pages in a row. After many deletions a server may answer with an empty page that is not the last, but not for
ever.
"""


def list_pages(
    bucket: Bucket, prefix: str, skipped: SkippedKeys, *, after: str = "", before: str = ""
) -> Iterator[ObjectPage]:
    """Yield the pages as the server answers. Only its last page ends the iterator."""
    cut, within = len(bucket.prefix), bucket.prefix + prefix
    first_after = bucket.prefix + after if after else ""
    last, token, empty = first_after, "", 0
    while True:
        page = _read_page(bucket, within, first_after, token)
        entries = page.get("Contents", ())
        found = ObjectPage([], [], [], [])
        for entry in entries:
            full, size, written = entry.get("Key"), entry.get("Size"), entry.get("LastModified")
            if full is None or size is None or written is None or not full.startswith(within):
                raise _untrusted_page(bucket, f"it has {full!r}, which was not requested")
            if full <= last:
                raise _untrusted_page(bucket, f"it has {full!r} after {last!r}, out of order")
            last = full
            key = full[cut:]
            if before and key >= before:
                if found.keys:
                    yield found
                return
            fault = key_fault(key)
            if fault:
                skipped.add(key, fault)
            else:
                found.keys.append(key)
                found.sizes_bytes.append(size)
                found.mtimes_ms.append(int(written.timestamp() * 1000))
                found.etags.append(entry.get("ETag", "").strip('"'))
        if found.keys:
            yield found
        if not page["IsTruncated"]:
            return
        empty = 0 if entries else empty + 1
        if empty > _EMPTY_PAGES_MAX:
            raise _untrusted_page(bucket, f"more than {_EMPTY_PAGES_MAX} empty pages followed each other")
        following = page.get("NextContinuationToken", "")
        if not following or following == token:
            raise _untrusted_page(bucket, "it continues, but does not say where")
        token = following


def _read_page(bucket: Bucket, prefix: str, after: str, token: str) -> ListObjectsV2OutputTypeDef:
    with bucket.translate_errors(f"listing {prefix!r}"):
        if token:
            page = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix, ContinuationToken=token)
        else:
            page = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix, StartAfter=after)
    bucket.seen = True
    if "IsTruncated" not in page:
        raise _untrusted_page(bucket, "it does not say whether it is complete")
    if page.get("KeyCount", len(page.get("Contents", ()))) != len(page.get("Contents", ())):
        raise _untrusted_page(bucket, "it does not have as many keys as it says")
    return page


def _untrusted_page(bucket: Bucket, why: str) -> ObjectsUnavailable:
    return ObjectsUnavailable(
        f"the listing of {bucket.url} cannot be trusted: {why}; it was not used, check the server"
    )
