"""Turn objects into the API's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from refstore.context import Context
from refstore.core.ids import Address, is_own, own_address
from refstore.errors import InvalidToken
from refstore.objects.foreign_objects import unreadable_reason
from refstore.records.s3_attributes import content_of
from refstore.records.staging_records import StoredEntry
from refstore_api.signed_urls import SignedUrl
from refstore_http.headers import content_type_of
from refstore_http.json_responses import make_fields_response

TOKEN: Final = "token"  # noqa: S105  # a parameter's name
_OWN_TOKEN_QUERY: Final = re.compile(rf"{TOKEN}=([A-Za-z0-9_.-]+)")


def namespace_of(ctx: Context) -> str:
    return ctx.shown_namespace or _namespace_url(ctx)


def _namespace_url(ctx: Context) -> str:
    return ctx.objects.url.partition("?")[0].rstrip("/")


def physical_url(ctx: Context, address: Address) -> str:
    """Return the full URL of an address."""
    return f"{namespace_of(ctx)}/{address}" if is_own(address) else address


def address_of_url(ctx: Context, text: str) -> Address:
    """Return the address of a full URL, as shown or as stored, or of an address in our own form. Raises InvalidName."""
    bare = text.partition("?")[0]
    return own_address(bare.removeprefix(namespace_of(ctx) + "/").removeprefix(_namespace_url(ctx) + "/"))


def add_token(url: str, token: str) -> str:
    return f"{url}?{TOKEN}={token}"


def read_token(ctx: Context, url: str) -> str:
    """Return the token that `getPhysicalAddress` put into its URL. Raises InvalidToken."""
    query = url.partition("?")[2]
    # our own spelling first; any other one is parsed
    own_query = _OWN_TOKEN_QUERY.fullmatch(query)
    token = own_query[1] if own_query else dict(parse_qsl(query)).get(TOKEN, "")
    if not token:
        raise InvalidToken(
            "the physical address carries no token; link the staging location as getPhysicalAddress answered it"
        )
    address_of_url(ctx, url)
    return token


def make_object_response(
    ctx: Context,
    path: str,
    entry: StoredEntry,
    status: int = 200,
    *,
    user_metadata: bool = True,
    signed: SignedUrl | None = None,
) -> Response:
    """Answer with an object as `ObjectStats` shows it."""
    return make_fields_response(object_fields(ctx, path, entry, user_metadata=user_metadata, signed=signed), status)


def _multipart_etag(entry: StoredEntry) -> str:
    """Return the ETag of an object that came in parts; '' for another one."""
    content = content_of(entry.s3)
    return content.etag if content is not None else ""


class ObjectFields(msgspec.Struct, gc=False, omit_defaults=True):
    """Hold what an answer shows of an object, under the names that `ObjectStats` documents.

    A model for each object would take most of a listing's time, and a dict for each twice as long as this.
    """

    path: str
    path_type: str
    physical_address: str
    checksum: str
    mtime: int
    size_bytes: int | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    metadata: Mapping[str, str] | UnsetType = UNSET
    physical_address_expiry: int | UnsetType = UNSET
    unreadable: str | UnsetType = UNSET


def object_fields(
    ctx: Context, path: str, entry: StoredEntry | None, *, user_metadata: bool = True, signed: SignedUrl | None = None
) -> ObjectFields:
    """Return an object as `ObjectStats` shows it; without an entry, a common prefix."""
    if entry is None:
        return ObjectFields(path, "common_prefix", "", "", 0)
    return ObjectFields(
        path,
        "object",
        signed.url if signed else physical_url(ctx, entry.address),
        entry.md5 or _multipart_etag(entry) or entry.checksum,
        entry.mtime_ms // 1000,
        entry.size_bytes,
        content_type_of(entry),
        entry.metadata if user_metadata else UNSET,
        signed.expires_seconds if signed else UNSET,
        UNSET if is_own(entry.address) or not entry.address else unreadable_reason(entry.address) or UNSET,
    )
