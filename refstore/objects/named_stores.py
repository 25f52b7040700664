"""How the stores of a lake's repositories are reached: by names, or as the lake's own objects are.

A namespace's URL stays in the KV and in the manifest for years, and the endpoint of its store changes meanwhile. So the
URL of a namespace has no endpoint:

    s3://bucket/prefix?endpoint=archive    reached as the settings `stores.archive` say
    s3://bucket/prefix                     reached as the lake's own objects are, where those are in S3

The URL of the lake's own objects is a setting itself, and may have an endpoint (`?endpoint=https://...`) or a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refstore.core.redaction import redact_url
from refstore.errors import InvalidName, InvalidSettings
from refstore.objects.store_urls import StoreURL, parse_store_url

CONNECTION_OPTIONS: Final = ("endpoint", "profile")
"""The options of an s3:// URL that say how its bucket is reached. The profile comes from a named store only."""

NamedStores = Mapping[str, Mapping[str, str]]
"""The connection options of each named store."""


def resolve_url(url: str, named: NamedStores, lake_url: str) -> str:
    """Return the URL with the options by which its store is reached. `lake_url`: of the lake's own objects. Raises
    InvalidSettings (there is no setting for the name).
    """
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


def namespace_url(url: str, named: NamedStores, lake_url: str) -> str:
    """Return the URL as a repository's record has it: without an endpoint of its own. Raises InvalidName, and
    InvalidSettings as `resolve_url`.
    """
    parsed = parse_store_url(url)
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


def _connection_options(url: StoreURL) -> dict[str, str]:
    return {name: value for name, value in url.options.items() if name in CONNECTION_OPTIONS}


def _add_default_options(url: StoreURL, options: Mapping[str, str]) -> StoreURL:
    return url._replace(options={**options, **url.options})
