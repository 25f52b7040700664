"""URLs of object stores. The parser is strict: a mistyped option is an error and not a default.

    file:///var/lib/refstore/objects?fsync=0
    s3://bucket/prefix?endpoint=http://127.0.0.1:8000
    memory://name

A URL never contains secrets, because it is written into repositories' records and into logs. `user:password@` is
refused, and the error message does not repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from refstore.core.redaction import redact_url
from refstore.errors import InvalidName, InvalidPath, InvalidSettings
from refstore.objects.object_keys import check_key

DELETE_VERSIONS: Final = "delete_versions"
"""The option of `s3://` URLs that makes deletions include the versions."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://")
_USER_INFO: Final = re.compile(r"(?<=//)[^/?#]*@")
_BOOLEANS: Final = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


class StoreURL(NamedTuple):
    scheme: str
    host: str
    """The bucket, or the name of a memory store."""
    path: str
    """Decoded, as written."""
    options: Mapping[str, str]

    def text(self) -> str:
        """Return the URL in its canonical spelling."""
        query = urlencode(sorted(self.options.items()), safe="/:")
        return f"{self.scheme}://{self.host}{quote(self.path)}{'?' + query if query else ''}"

    def check_options(self, *names: str, unnamed: str = "") -> None:
        """Raise InvalidSettings for an option that is not in `names`, nor `unnamed`, which people do not write."""
        for name in self.options:
            if name not in (*names, unnamed):
                raise InvalidSettings(
                    f"{name!r} is not an option of {self.scheme}:// object stores; use "
                    f"{', '.join(names) if names else 'none at all'}"
                )

    def boolean_option(self, name: str, default: bool) -> bool:
        value = self.options.get(name)
        if value is None:
            return default
        if value.lower() not in _BOOLEANS:
            raise InvalidSettings(f"{name}={value!r} is neither yes nor no; use {name}=0 or {name}=1")
        return _BOOLEANS[value.lower()]


def parse_store_url(url: str) -> StoreURL:
    """Parse the URL of an object store. Raises InvalidSettings; InvalidName for a name that no store has."""
    match = _SCHEME.match(url)
    if match is None or any(ord(character) < 32 for character in url):
        raise InvalidSettings(
            f"{redact_url(url)!r} is not an object store's URL; it looks like file:///directory or s3://bucket/prefix"
        )
    try:
        parts = urlsplit(url)
    except ValueError:  # of a host such as '[x'
        raise InvalidSettings(f"{redact_url(url)!r} cannot be parsed; write brackets as %5B and %5D") from None
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:  # readers would take it for another name
        raise InvalidName(f"{redact_url(url)!r} has a name that is not UTF-8; write it as %XX of UTF-8") from None
    if "\0" in path:
        raise InvalidName(f"{redact_url(url)!r} has a NUL in it (%00); no store has such a name")
    if parts.fragment or "#" in url:
        raise InvalidSettings(f"{redact_url(url)!r} has a '#'; write %23 for one that belongs to a name")
    pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=False)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidSettings(f"{redact_url(url)!r} sets an option twice; keep one")
    if "@" in parts.netloc or _USER_INFO.search(options.get("endpoint", "")):
        raise InvalidSettings(
            f"{redact_url(url)!r} contains credentials; put them into the environment, a profile or the instance role, "
            "because URLs are stored and logged"
        )
    return StoreURL(match.group(1), parts.netloc, path, options)


def copy_delete_versions(url: str, lakes_url: str) -> str:
    """Return the URL of a namespace with `delete_versions` as the lake's URL has it, if both are in one bucket.

    A repository's record has the URL as it was when the repository was created; the option may come later.
    """
    own, lakes = parse_store_url(url), parse_store_url(lakes_url)
    if (own.scheme, own.host, own.options.get("endpoint")) != (lakes.scheme, lakes.host, lakes.options.get("endpoint")):
        return url
    value = lakes.options.get(DELETE_VERSIONS)
    if own.options.get(DELETE_VERSIONS) == value:
        return url
    others = {name: each for name, each in own.options.items() if name != DELETE_VERSIONS}
    return own._replace(options=others if value is None else {**others, DELETE_VERSIONS: value}).text()


def child(url: str, name: str) -> str:
    """Return the URL of the namespace `name` directly below `url`, with the same options. Raises InvalidSettings."""
    parsed = parse_store_url(url)
    try:
        check_key(name)
    except InvalidPath as error:
        raise InvalidSettings(f"{name[:80]!r} cannot name a namespace; {error}") from None
    if "/" in name:
        raise InvalidSettings(f"{name[:80]!r} cannot name a namespace; it must be one segment, without '/'")
    return parsed._replace(path=f"{parsed.path.rstrip('/')}/{name}").text()
