"""Find the server and the access key as lakectl does: the environment first, then `~/.lakectl.yaml`."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from refstore.core.redaction import redact_url
from refstore.errors import Invalid

API_PATH: Final = "/api/v1"
_CONFIG_FILE: Final = "LAKECTL_CONFIG_FILE"
_LINE: Final = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+) *:(?:\s+(?P<value>.*))?")
_QUOTED: Final = re.compile(r"(?:'(?P<single>[^']*)'|\"(?P<double>[^\"\\]*)\")\s*(?:#.*)?")
_NO_PLAIN_BEGIN: Final = frozenset("&*|>{[!%@`'\"")
"""What a plain text of YAML does not begin with."""
UNREADABLE: Final = "\0"


@dataclass(frozen=True, slots=True)
class LakefsLogin:
    api_url: str
    """With the path of the API, without a slash at its end."""
    access_key_id: str
    secret_access_key: str = field(repr=False)

    @property
    def is_readable_by_others(self) -> bool:
        """Whether the key goes over a network without TLS."""
        parts = urlsplit(self.api_url)
        return parts.scheme == "http" and not _is_loopback(parts.hostname or "")


def read_login(endpoint: str, environ: Mapping[str, str] | None = None) -> LakefsLogin:
    """Return where the server is, and the access key. `endpoint`: '': where lakectl finds it. Raises Invalid."""
    environ = os.environ if environ is None else environ
    named_file = environ.get(_CONFIG_FILE, "")
    path = Path(named_file) if named_file else Path(environ.get("HOME", "~")).expanduser() / ".lakectl.yaml"
    try:
        settings = parse_lakectl_settings(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if named_file:
            raise Invalid(f"{path} is not there; correct {_CONFIG_FILE}, or unset it") from None
        settings: dict[str, str] = {}
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} cannot be read ({type(error).__name__}); correct it, or move it away") from None

    def find(name: str) -> str:
        variable = f"LAKECTL_{name.upper().replace('.', '_')}"
        value = environ.get(variable) or settings.get(name) or ""
        if not value:
            raise Invalid(
                f"{name} of lakeFS is not known; set {variable}, or run `lakectl config`, which writes {path}"
            )
        if not value.isprintable():
            raise Invalid(
                f"{name} in {path} is written in a way that is not understood; write it in quotes on its line"
            )
        return value

    api_url = _make_api_url(endpoint or find("server.endpoint_url"))
    return LakefsLogin(api_url, find("credentials.access_key_id"), find("credentials.secret_access_key"))


def parse_lakectl_settings(text: str) -> dict[str, str]:
    """Return the texts of a YAML file by their dotted names, as far as it consists of maps and texts in one line. A
    text in any other form is returned as `UNREADABLE`.
    """
    settings: dict[str, str] = {}
    outer: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        indent, value = len(match["indent"]), (match["value"] or "").strip()
        while outer and outer[-1][0] >= indent:
            outer.pop()
        outer.append((indent, match["key"].lower()))
        quoted = _QUOTED.fullmatch(value)
        if quoted is not None:
            value = quoted["single"] if quoted["double"] is None else quoted["double"]
        elif value[:1] in _NO_PLAIN_BEGIN:
            value = UNREADABLE
        else:
            value = "" if value.startswith("#") else value.partition(" #")[0].rstrip()
        if value:
            settings[".".join(key for _, key in outer)] = value
    return settings


def _make_api_url(endpoint: str) -> str:
    shown = redact_url(endpoint)
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError:
        raise Invalid(f"{shown!r} is not the URL of a lakeFS server; write it as https://HOST") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not endpoint.isprintable():
        raise Invalid(f"{shown!r} is not the URL of a lakeFS server; write it as https://HOST")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Invalid(f"{shown!r} has more than a host and a path; leave logins and parameters out of it")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith(API_PATH) else path + API_PATH}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
