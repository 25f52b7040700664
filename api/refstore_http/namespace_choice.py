"""Choose the namespace of a new repository within what the settings allow, whichever application creates it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from refstore.errors import InvalidName
from refstore.lake import Lake
from refstore.namespaces import folder_url
from refstore.objects import child
from refstore_http.http_errors import Forbidden

LOCAL = ("local://", "mem://")
"""lakeFS's schemes of a store in files or in memory: `local://A/B` is the folder A/B below the lake's objects."""


def choose_namespace(lake: Lake, requested_url: str, allowed: Sequence[str]) -> str | None:
    """Return the URL of a new repository's namespace; None: one below the lake's own objects. If `allowed`
    (`api.namespaces`) is not empty, the namespace must lie below one of them. Raises InvalidName, Forbidden.

    On the service's own disk, a namespace outside the lake's objects must be in `allowed`; in a bucket the credentials
    decide. The endpoint is always the lake's. Otherwise the service would send signed requests to an endpoint of the
    caller's choice.
    """
    url = _namespace_url(lake, requested_url, anywhere=bool(allowed))
    folder = folder_url(url or child(lake.objects_url, "any"))
    if allowed and not any(folder.startswith(above) and folder != above for above in map(folder_url, allowed)):
        raise Forbidden(
            f"{requested_url[:80]!r} is not below what api.namespaces allows; name a folder below one of these: "
            f"{', '.join(allowed)[:1000]}"
        )
    return url


def _namespace_url(lake: Lake, requested_url: str, *, anywhere: bool) -> str | None:
    """Return the URL that the request names. `anywhere`: it may lie outside the lake's own folder. Raises
    InvalidName.
    """
    bare = requested_url.rstrip("/")
    own, options, query = lake.objects_url.partition("?")
    own = own.rstrip("/")
    scheme = own.partition("://")[0] + "://"
    if "?" in bare or "#" in bare:
        raise InvalidName(
            f"{requested_url.partition('?')[0][:80]!r} must not have options; leave them out, the service uses its own"
        )
    if bare in ("", own):
        return None
    if requested_url.startswith(LOCAL):
        folders = requested_url.partition("://")[2].strip("/")
        return reduce(child, folders.split("/"), lake.objects_url) if folders else None
    if not bare.startswith(own + "/") and not (bare.startswith(scheme) and (anywhere or scheme == "s3://")):
        raise InvalidName(
            f"{requested_url[:80]!r} is outside of what this service stores; leave storage_namespace empty, or name "
            f"one below {own}"
        )
    if any(segment in (".", "..") for segment in bare.partition("://")[2].split("/")):
        raise InvalidName(f"{requested_url[:80]!r} has '.' or '..' in it; name the folder itself")
    return f"{bare}{options}{query}"
