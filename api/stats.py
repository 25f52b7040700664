"""Objects as the API shows them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from api.headers import type_of
from api.models import ObjectStats
from refstore.context import Context
from refstore.errors import InvalidToken
from refstore.ids import Address, is_own, own_address
from refstore.records import Entry

TOKEN: Final = "token"  # noqa: S105  # a parameter's name
_AS_GIVEN: Final = re.compile(rf"{TOKEN}=([A-Za-z0-9_.-]+)")


def namespace_of(ctx: Context) -> str:
    return ctx.shown_namespace or _url_of(ctx)


def _url_of(ctx: Context) -> str:
    return ctx.objects.url.partition("?")[0].rstrip("/")


def physical(ctx: Context, address: Address) -> str:
    """The full URL of an address."""
    return f"{namespace_of(ctx)}/{address}" if is_own(address) else address


def relative(ctx: Context, text: str) -> Address:
    """The address of a full URL, as it is shown or as it is, or of an address as it stands in our own records. Raises InvalidName."""
    bare = text.partition("?")[0]
    return own_address(bare.removeprefix(namespace_of(ctx) + "/").removeprefix(_url_of(ctx) + "/"))


def with_token(url: str, token: str) -> str:
    return f"{url}?{TOKEN}={token}"


def token_of(ctx: Context, url: str) -> str:
    """The token that `getPhysicalAddress` put into its address. Raises InvalidToken."""
    query = url.partition("?")[2]
    # as we wrote it, or, taken apart with care, as somebody else did
    given = _AS_GIVEN.fullmatch(query)
    found = given[1] if given else dict(parse_qsl(query)).get(TOKEN, "")
    if not found:
        raise InvalidToken("the physical address carries no token; link the staging location as getPhysicalAddress answered it")
    relative(ctx, url)
    return found


def stats(
    ctx: Context, path: str, entry: Entry, *, user_metadata: bool = True, url: str | None = None, expiry: int | None = None
) -> ObjectStats:
    return ObjectStats.model_construct(
        path=path,
        path_type="object",
        physical_address=url or physical(ctx, entry.address),
        physical_address_expiry=expiry,
        checksum=entry.md5 or entry.checksum,
        size_bytes=entry.size_bytes,
        mtime=entry.mtime_ms // 1000,
        metadata=entry.metadata if user_metadata else None,
        content_type=type_of(entry),
    )


def common_prefix(path: str) -> ObjectStats:
    return ObjectStats.model_construct(
        path=path,
        path_type="common_prefix",
        physical_address="",
        physical_address_expiry=None,
        checksum="",
        size_bytes=None,
        mtime=0,
        metadata=None,
        content_type=None,
    )
