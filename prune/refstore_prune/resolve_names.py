"""Make keys of names: where an object lies in the store that a source names by a URL, a path or a part of one.

A name may be spelled otherwise than the key that it means: as a URL of another scheme, with characters as %XX, in
another normal form of Unicode, with slashes too many. Every key that it may mean is kept, so a spelling can keep an
object too many, and never loses one. Names without anything unusual are resolved by whole columns.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from refstore.core.arrow_arrays import make_array, make_scalar
from refstore.objects.store_urls import parse_store_url
from refstore_gc.untyped_arrow import pa, pc

_KINDS: Final = {"s3": "s3", "s3a": "s3", "s3n": "s3", "file": "file", "local": "file"}
"""By scheme; another scheme is a kind by itself."""
_FILE_BEGINNINGS: Final = ("file://", "file:", "", "file://localhost", "local://")
_LOCAL_HOSTS: Final = ("", "localhost")
_MAYBE_PATH: Final = r"^/|^[A-Za-z][A-Za-z0-9+.-]*:/([^/]|$)"
_ABSOLUTE: Final = re.compile(r"^(/|[A-Za-z][A-Za-z0-9+.-]*:/)")
_LOCATION: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):(?=/))?(?://([^/]*))?(/.*)?", re.DOTALL)
_ODD: Final = re.compile(r"[%+]|[^ -~]|(^|/)\.{0,2}(/|$)")
_ODD_WHERE_ENCODED: Final = re.compile(r"[^A-Za-z0-9_.~/-]|(^|/)\.{0,2}(/|$)")
"""Match keys that may have other spellings."""
_KEPT_AS_IT_IS: Final = ("/", "/=", "/!'()*", "/!$&'()*+,;=:@")
"""What encoders of paths leave alone besides letters, digits and `_.-~`."""
_ONE_SLASH: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")
"""Begins a URL as some libraries write it, or a key whose first folder ends with a colon."""
_LOOSE: Final = re.compile("^[\\s'\"\u00a0\ufeff]|[\\s'\"\u00a0]$|[?#\\\\]")
"""Matches names around which, or behind which, may stand what does not belong to them."""
_AROUND: Final = " \t\r\n\v\f'\"\u00a0\ufeff"
_ENCODED_BY_HIVE: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*:?\\{\[\]^]")
_ESCAPE: Final = re.compile("%[0-9A-F]{2}")
_UNTIDY: Final = re.compile(r"(^|/)\.{0,2}(/|$)")
"""Matches keys that may have another spelling: with an empty segment, or one of dots, or any but plain characters."""
_NO_KEY: Final = "/"
"""Stands for names of folders, and of the store itself: no object has this key, so it keeps nothing."""
_DECODED_MAX: Final = 2
"""How often %XX is decoded: some tools encode what others have encoded."""
_FOLDERS_MAX: Final = 100_000
"""Of how many folders a task remembers where they really are."""


class ResolvedNames(NamedTuple):
    keys: Any
    """An Arrow array of strings: the key of each name that lies in the store, as the source spells it."""
    other_keys: Any
    """Those of its other spellings."""
    outside: int
    """How many names are of objects elsewhere."""
    outside_examples: list[str]


class _NamedPlace(NamedTuple):
    kind: str
    host: str
    path: str
    """It begins with a slash, or is empty."""


class NameResolver:
    """Resolves the names of one source. It is pickled."""

    def __init__(self, store_url: str, base_url: str = "", *, has_encoded_keys: bool = False) -> None:
        """`base_url`: what relative names are relative to; '': the store. `has_encoded_keys`: whether some keys have a
        `%`, so that a name may mean one in which characters are written as %XX. Raises InvalidSettings.
        """
        self._has_encoded_keys = has_encoded_keys
        self._odd = _ODD_WHERE_ENCODED if has_encoded_keys else _ODD
        url = parse_store_url(store_url)
        self._kind = _KINDS.get(url.scheme, url.scheme)
        self._is_file = self._kind == "file"
        self._host = "" if self._is_file else url.host
        path = url.path.rstrip("/")
        self._roots = [path]
        if self._is_file:
            self._roots = list(dict.fromkeys([path, os.path.realpath(path or "/").rstrip("/")]))
        schemes = [scheme for scheme, kind in _KINDS.items() if kind == self._kind] or [self._kind]
        buckets = _FILE_BEGINNINGS if self._is_file else [f"{scheme}://{self._host}" for scheme in schemes]
        self._beginnings = tuple(f"{bucket}{root}/" for root in self._roots for bucket in buckets)
        self._base = _base_of(base_url) if base_url else self._beginnings[0]
        self._bucket = rf"^(?:{'|'.join(schemes)})://{re.escape(self._host)}/"
        self._here = rf"(?i)^(?:{'|'.join(schemes)})://(?:{re.escape(self._host)})?(/|$)|{_MAYBE_PATH}"
        self._real_folders: dict[str, str] = {}

    def resolve(self, names: Any) -> ResolvedNames:
        """`names`: an Arrow array of strings."""
        whole = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
        keys, left, outside, examples = self._resolve_plain(pc.drop_null(whole.cast(pa.string())))
        own: list[str] = []
        others: set[str] = set()
        for name in left.to_pylist():
            key, more = self._locate(name)
            others |= more
            for tight in _tighten(name) if _LOOSE.search(name) else ():
                tight_key, more = self._locate(tight)
                others |= more | ({tight_key} if tight_key else set())
            if key is None:
                outside += 1
                examples = examples or [name]
            else:
                own.append(key or _NO_KEY)
        keys = pa.concat_arrays([keys, make_array(own, pa.string())])
        return ResolvedNames(keys, make_array(list(others - {"", _NO_KEY}), pa.string()), outside, examples)

    def _resolve_plain(self, texts: Any) -> tuple[Any, Any, int, list[str]]:
        """Resolve by whole columns the names that mean one key only, or none. Return the keys, the names that are left,
        how many lie elsewhere, and an example of these.
        """
        if self._is_file:  # any name may lead through links
            return texts.slice(0, 0), texts, 0, []
        is_relative = pc.invert(pc.match_substring_regex(texts, _ABSOLUTE.pattern))
        urls = pc.if_else(is_relative, _prepend(self._base, texts), texts)
        is_here = pc.match_substring_regex(urls, self._bucket)
        paths = pc.replace_substring_regex(urls, self._bucket, "")
        root = f"{self._roots[0]}/".lstrip("/")
        is_below = pc.and_(is_here, pc.starts_with(paths, pattern=root))
        keys = pc.binary_replace_slice(paths, start=0, stop=len(root.encode()), replacement="")
        keys = pc.if_else(is_below, keys, paths)
        is_loose = pc.match_substring_regex(texts, _LOOSE.pattern)
        is_plain = pc.invert(pc.or_(is_loose, pc.match_substring_regex(keys, self._odd.pattern)))
        is_elsewhere = pc.and_not(pc.invert(is_loose), pc.match_substring_regex(urls, self._here))
        if root:  # else what lies in the bucket lies in the store
            is_store = pc.equal(paths, make_scalar(root.rstrip("/"), pa.string()))
            is_beside = pc.and_not(is_here, pc.or_(is_below, is_store))
            is_elsewhere = pc.or_(is_elsewhere, pc.and_(is_plain, is_beside))
        elsewhere = texts.filter(is_elsewhere)
        is_key = pc.and_(is_below, is_plain)
        left = texts.filter(pc.invert(pc.or_(is_key, is_elsewhere)))
        return keys.filter(is_key), left, len(elsewhere), elsewhere.slice(0, 1).to_pylist()

    def _locate(self, name: str) -> tuple[str | None, set[str]]:
        """Return the key of a name and those of its other spellings; None: it lies elsewhere."""
        key = self._strip_beginning(name)
        if key is None and not _ABSOLUTE.match(name):
            name = self._base + name
            key = self._strip_beginning(name)
        if key is not None:
            return key, self._spell_all([key])
        own, others = self._locate_absolute(name)
        if own is None and _ONE_SLASH.match(name):  # it may be relative, too
            relative = self._strip_beginning(self._base + name)
            if relative is not None:
                others |= self._spell_all([relative])
                own = relative if name.partition(":")[0].lower() not in _KINDS else None
        return own, others

    def _locate_absolute(self, name: str) -> tuple[str | None, set[str]]:
        location = _parse_location(name)
        if location is None:
            return None, set()
        is_path = not location.kind
        if not is_path and (location.kind, location.host.lower()) != (self._kind, self._host.lower()):
            return None, set()
        others = self._spell_all([below for path in spellings(location.path) for below in self._keys_of_path(path)])
        if self._is_file:
            others.update(self._keys_of_path(self._real_path(location.path)))
        if is_path and not (self._is_file and others):  # relative, with a slash too many
            relative = self._strip_beginning(self._base + location.path.lstrip("/"))
            others |= self._spell_all([] if relative is None else [relative])
        own = next(iter(self._keys_of_path(location.path)), None)
        if own is None and others and (not self._is_file or not is_path):
            own = min(others)  # only another spelling of the URL leads into the store
        return own, others

    def _strip_beginning(self, name: str) -> str | None:
        """Return what follows the store's URL; None: the name does not begin with it."""
        return next((name[len(each) :] for each in self._beginnings if name.startswith(each)), None)

    def _spell_all(self, keys: Sequence[str]) -> set[str]:
        """Return the other spellings of keys, and what they lead to through links."""
        found = {each for key in keys for each in (self._key_spellings(key) if self._odd.search(key) else {key})}
        return found | self._follow_links(keys) if self._is_file else found

    def _key_spellings(self, key: str) -> set[str]:
        found = key_spellings(key)
        if self._has_encoded_keys:
            by_hive = {_ENCODED_BY_HIVE.sub(lambda match: f"%{ord(match[0]):02X}", each) for each in found}
            found |= by_hive | {quote(each, safe=safe) for each in found for safe in _KEPT_AS_IT_IS}
            found |= {_ESCAPE.sub(lambda match: match[0].lower(), each) for each in found if "%" in each}
        return found

    def _keys_of_path(self, path: str) -> Iterator[str]:
        for root in self._roots:
            if path.rstrip("/") == root:
                yield _NO_KEY
            elif path.startswith(f"{root}/"):
                yield path[len(root) + 1 :]

    # ---- links, in folders of this machine

    def _follow_links(self, keys: Any) -> set[str]:
        """Return the keys of what names lead to through symbolic links."""
        found: set[str] = set()
        for key in keys:
            path = f"{self._roots[0]}/{key}"
            folder, _, name = path.rpartition("/")
            real = self._real_folder(folder)
            target = _resolve_link(path) or f"{real}/{name}"
            if target != f"{self._roots[-1]}/{key}":
                found.update(self._keys_of_path(target))
        return found

    def _real_path(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        return _resolve_link(path) or f"{self._real_folder(folder)}/{name}"

    def _real_folder(self, folder: str) -> str:
        real = self._real_folders.get(folder)
        if real is None:
            if len(self._real_folders) >= _FOLDERS_MAX:
                self._real_folders.clear()
            real = self._real_folders[folder] = os.path.realpath(folder or "/").rstrip("/")
        return real


def spellings(text: str) -> set[str]:
    """Return the spellings of a path."""
    found = {text}
    for _ in range(_DECODED_MAX):
        found |= {decoded for each in found for decoded in _decode(each)}
    found |= {_tidy(each) for each in found if _UNTIDY.search(each)}
    return found | {
        unicodedata.normalize(form, each) for each in found if not each.isascii() for form in ("NFC", "NFD")
    }


def key_spellings(key: str) -> set[str]:
    """Return the spellings of a key, which begins with no slash."""
    return {each.lstrip("/") for each in spellings(key)}


def _decode(text: str) -> Iterator[str]:
    for each in (text, text.replace("+", " ")) if "+" in text else (text,) if "%" in text else ():
        try:
            yield unquote(each, errors="strict")
        except UnicodeDecodeError:
            continue


def _tidy(text: str) -> str:
    """Return a key or path without empty segments and those of dots."""
    kept: list[str] = []
    for segment in text.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return ("/" if text.startswith("/") else "") + "/".join(kept)


def _tighten(name: str) -> set[str]:
    """Return a name without what stands around it, without a query or fragment, and with slashes for backslashes."""
    bare = name.strip(_AROUND)
    found = {bare, re.split("[?#]", bare)[0]}
    return {*found, *(each.replace("\\", "/") for each in found)} - {name}


def _resolve_link(path: str) -> str:
    """Return where a link leads; '': the path is none."""
    return os.path.realpath(path) if os.path.islink(path) else ""  # noqa: PTH114  # a Path takes far longer


def _parse_location(name: str) -> _NamedPlace | None:
    """Return where a URL or an absolute path leads. Its kind is '' for a path. None: it is neither."""
    match = _LOCATION.fullmatch(name)
    if match is None:
        return None
    scheme, host, path = (part or "" for part in match.groups())
    if not scheme:
        return _NamedPlace("", "", f"//{host}{path}" if host else path) if host or path else None
    kind = _KINDS.get(scheme.lower(), scheme.lower())
    if kind == "s3" and not host:  # Java writes s3:/bucket/key
        host, _, path = path.lstrip("/").partition("/")
        path = f"/{path}"
    return _NamedPlace(kind, "" if kind == "file" and host.lower() in _LOCAL_HOSTS else host, path)


def _base_of(url: str) -> str:
    """Return the beginning of what is relative to a URL or a path."""
    if url.startswith("/"):
        return f"{url.rstrip('/')}/"
    base = parse_store_url(url)
    return f"{base.scheme}://{base.host}{base.path.rstrip('/')}/"


def _prepend(beginning: str, texts: Any) -> Any:
    return pc.binary_join_element_wise(make_scalar(beginning, pa.string()), texts, make_scalar("", pa.string()))
