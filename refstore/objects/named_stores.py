"""How the stores of a lake's repositories are reached: by names, or as the lake's own objects are.

A namespace's URL stays in the KV and in the manifest for years, and the endpoint of its store changes meanwhile. So the
URL of a namespace has no endpoint:

    s3://bucket/prefix?endpoint=archive    reached as the settings `stores.archive` say
    s3://bucket/prefix                     reached as the lake's own objects are, where those are in S3

The URL of the lake's own objects is a setting itself, and may have an endpoint (`?endpoint=https://...`) or a name.

A folder may be moved, copied, or mounted elsewhere. So a namespace below the folder that has the KV and the lake's own
objects is recorded relative to the latter, wherever those are now:

    lake:///sales.1                        the folder sales.1 of the lake's own objects
    lake:///../archive                     beside them, below the folder that has the KV, too
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from refstore.core.redaction import redact_url
from refstore.errors import InvalidName, InvalidSettings
from refstore.objects.store_urls import StoreURL, parse_store_url

CONNECTION_OPTIONS: Final = ("endpoint", "profile")
"""The options of an s3:// URL that say how its bucket is reached. The profile comes from a named store only."""

RELATIVE: Final = "lake"
"""The scheme of a namespace that is recorded relative to the lake's own objects."""

NamedStores = Mapping[str, Mapping[str, str]]
"""The connection options of each named store."""


def resolve_url(url: str, named: NamedStores, lake_url: str) -> str:
    """Return the URL with the options by which its store is reached. `lake_url`: of the lake's own objects. Raises
    InvalidSettings (there is no setting for the name).
    """
    url = absolute_url(url, lake_url)
    parsed = parse_store_url(url)
    if parsed.scheme != "s3":
        return url
    for each in (parsed, own := parse_store_url(lake_url)):
        if "profile" in each.options:
            raise InvalidSettings(
                f"{redact_url(url)!r} has a profile; set stores.NAME.profile, and write ?endpoint=NAME"
            )
    if not _connection_options(parsed) and own.scheme == "s3":
        parsed = _add_default_options(parsed, _connection_options(own))
    name = parsed.options.get("endpoint", "")
    if not name or "://" in name:
        return parsed.text()
    if name not in named:
        raise InvalidSettings(
            f"{redact_url(url)!r} names the object store {name[:80]!r}, which has no settings here; set "
            f"stores.{name[:80]}.endpoint to the endpoint of its S3 service"
        )
    options = {option: value for option, value in parsed.options.items() if option != "endpoint"}
    return _add_default_options(parsed._replace(options=options), named[name]).text()


def is_relative(url: str) -> bool:
    """Return whether the URL is recorded relative to the lake's own objects."""
    return url.startswith(f"{RELATIVE}:")


def absolute_url(url: str, lake_url: str) -> str:
    """Return the URL of a namespace as it is where the lake's own objects are at `lake_url`."""
    parsed = parse_store_url(url)
    if parsed.scheme != RELATIVE:
        return url
    own, segments = parse_store_url(lake_url), _segments(parsed)
    above = next((count for count, segment in enumerate(segments) if segment != ".."), len(segments))
    root = own.path.rstrip("/").split("/")
    path = "/".join([*root[: max(1, len(root) - above)], *segments[above:]])
    return own._replace(path=path, options={**own.options, **parsed.options}).text()


def namespace_url(url: str, named: NamedStores, lake_url: str, lake_folder: Path | None = None) -> str:
    """Return the URL as a repository's record has it: without an endpoint of its own, and relative to the lake's own
    objects if it lies below them, or below `lake_folder`, which holds them and the KV (None: no folder does). Raises
    InvalidName, and InvalidSettings as `resolve_url`.
    """
    url = absolute_url(url, lake_url)
    parsed = parse_store_url(url)
    if parsed.scheme == "file" == parse_store_url(lake_url).scheme:
        return _relative_url(parsed, _segments(parse_store_url(lake_url)), lake_folder) or url
    if parsed.scheme != "s3":
        return url
    connection = _connection_options(parsed)
    own = parse_store_url(lake_url)
    if "://" in connection.get("endpoint", ""):
        if own.scheme != "s3" or connection != _connection_options(own):
            raise InvalidName(
                f"{redact_url(url)[:200]!r} has an endpoint; name it in the settings "
                "(stores.NAME.endpoint), and write ?endpoint=NAME, so that it can change"
            )
        options = {name: value for name, value in parsed.options.items() if name not in CONNECTION_OPTIONS}
        return parsed._replace(options=options).text()
    resolve_url(url, named, lake_url)
    return url


def _relative_url(url: StoreURL, own: Sequence[str], lake_folder: Path | None) -> str:
    """Return the URL relative to the lake's own objects; '' for one that lies elsewhere, or where the KV does: then
    each process says by its own settings where the objects are, and they may differ.
    """
    if lake_folder is None:
        return ""
    path = _segments(url)
    above = list(lake_folder.parts[1:])
    root = above if own[: len(above)] == above else own
    if path[: len(root)] != root or "." in path or ".." in path:
        return ""
    common = next((at for at, (a, b) in enumerate(zip(path, own, strict=False)) if a != b), min(len(path), len(own)))
    relative = [*[".."] * (len(own) - common), *path[common:]]
    return url._replace(scheme=RELATIVE, host="", path="/" + "/".join(relative)).text()


def _segments(url: StoreURL) -> list[str]:
    return [segment for segment in url.path.split("/") if segment]


def _connection_options(url: StoreURL) -> dict[str, str]:
    return {name: value for name, value in url.options.items() if name in CONNECTION_OPTIONS}


def _add_default_options(url: StoreURL, options: Mapping[str, str]) -> StoreURL:
    return url._replace(options={**options, **url.options})
