"""Find the server and the access key as lakectl does: the environment first, then `~/.lakectl.yaml`."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import yaml

from refstore.core.redaction import redact_url
from refstore.errors import Invalid

API_PATH: Final = "/api/v1"
_CONFIG_FILE: Final = "LAKECTL_CONFIG_FILE"


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
        settings = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506  # texts, lists and maps
    except (FileNotFoundError, NotADirectoryError):
        if named_file:
            raise Invalid(f"{path} is not there; correct {_CONFIG_FILE}, or unset it") from None
        settings = {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Invalid(f"{path} cannot be read ({type(error).__name__}); correct it, or move it away") from None

    def find(name: str) -> str:
        variable = f"LAKECTL_{name.upper().replace('.', '_')}"
        section, key = name.split(".")
        value = environ.get(variable) or _find_key(_find_key(settings, section), key) or ""
        if not value:
            raise Invalid(
                f"{name} of lakeFS is not known; set {variable}, or run `lakectl config`, which writes {path}"
            )
        if not isinstance(value, str) or not value.isprintable():
            raise Invalid(f"{name} of lakeFS is no text of one line; correct {variable} or {path}")
        return value

    api_url = _make_api_url(endpoint or find("server.endpoint_url"))
    return LakefsLogin(api_url, find("credentials.access_key_id"), find("credentials.secret_access_key"))


def _find_key(settings: Any, name: str) -> Any:
    """Return what a map has by a name, in small or capital letters; None: it has nothing, or is no map."""
    texts = cast(dict[str, Any], settings if isinstance(settings, dict) else {})
    return {key.lower(): value for key, value in texts.items()}.get(name)


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
