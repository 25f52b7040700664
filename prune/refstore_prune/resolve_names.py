"""Make keys of names: where an object lies in the store that a source names by a URL, a path or a part of one.

A name may be spelled otherwise than the key that it means: as a URL of another scheme, with characters as %XX, in
another normal form of Unicode, with slashes too many. Every key that it may mean is kept, so a spelling can keep an
object too many, and never loses one. Names without anything unusual are resolved by whole columns.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
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
_ABSOLUTE: Final = r"^(/|[A-Za-z][A-Za-z0-9+.-]*:/)"
_LOCATION: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):(?=/))?(?://([^/]*))?(/.*)?", re.DOTALL)
_ODD: Final = r"[%+]|[^ -~]|(^|/)\.{0,2}(/|$)"
_ODD_WHERE_ENCODED: Final = r"[^A-Za-z0-9_.~/-]|(^|/)\.{0,2}(/|$)"
_KEPT_AS_IT_IS: Final = ("/", "/=", "/!'()*", "/!$&'()*+,;=:@")
"""What encoders of paths leave alone besides letters, digits and `_.-~`."""
_ONE_SLASH: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")
"""Begins a URL as some libraries write it, or a key whose first folder ends with a colon."""
_LOOSE: Final = r"""^[\s'"\x{A0}\x{FEFF}]|[\s'"\x{A0}]$|[?#\\]"""
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
        self._host = url.host if self._kind != "file" else ""
        path = url.path.rstrip("/")
        self._roots = (
            list(dict.fromkeys([path, os.path.realpath(path or "/").rstrip("/")])) if self._is_file else [path]
        )
        schemes = [scheme for scheme, kind in _KINDS.items() if kind == self._kind] or [self._kind]
        beginnings = _FILE_BEGINNINGS if self._is_file else [f"{scheme}://{self._host}" for scheme in schemes]
        self._beginnings = [f"{beginning}{root}/" for root in self._roots for beginning in beginnings]
        self._base = _base_of(base_url) if base_url else self._beginnings[0]
        self._buckets = [] if self._is_file else [f"{scheme}://{self._host}/" for scheme in schemes]
        self._here = rf"^(?i:s3[an]?)://(?i:{re.escape(self._host)})(/|$)|{_MAYBE_PATH}" if self._kind == "s3" else ""
        self._real_folders: dict[str, str] = {}

    @property
    def _is_file(self) -> bool:
        return self._kind == "file"

    def resolve(self, names: Any) -> ResolvedNames:
        """`names`: an Arrow array of strings."""
        whole = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
        texts = pc.drop_null(whole.cast(pa.string()))
        resolved = self._resolve(texts)
        loose = texts.filter(pc.match_substring_regex(texts, _LOOSE)).to_pylist()
        more = {each for name in loose for each in _tighten(name)} - {""}
        if not more:
            return resolved
        tight = self._resolve(make_array(sorted(more), pa.string()))
        others = {*resolved.other_keys.to_pylist(), *tight.keys.to_pylist(), *tight.other_keys.to_pylist()}
        return resolved._replace(other_keys=make_array(list(others - {_NO_KEY}), pa.string()))

    def _resolve(self, texts: Any) -> ResolvedNames:
        found, unknown = self._strip_beginnings(texts)
        is_absolute = pc.match_substring_regex(unknown, _ABSOLUTE)
        relative, unknown = unknown.filter(pc.invert(is_absolute)), unknown.filter(is_absolute)
        if self._base == self._beginnings[0]:
            found.append(relative)
        else:
            below, elsewhere = self._strip_beginnings(_prepend(self._base, relative))
            found += below
            unknown = pa.concat_arrays([unknown, elsewhere])
        keys = pa.concat_arrays(found)
        others = {
            each
            for key in keys.filter(pc.match_substring_regex(keys, self._odd)).to_pylist()
            for each in self._key_spellings(key)
        }
        if self._is_file:
            others.update(self._follow_links(keys.to_pylist()))
        more_keys, outside, examples = self._locate_all(unknown, others)
        keys = pa.concat_arrays([keys, make_array(more_keys, pa.string())])
        is_store = pc.equal(pc.binary_length(keys), make_scalar(0, pa.int32()))
        if pc.any(is_store).as_py():
            keys = pc.if_else(is_store, make_scalar(_NO_KEY, pa.string()), keys)
        return ResolvedNames(keys, make_array(list(others - {""}), pa.string()), outside, examples)

    def _strip_beginnings(self, texts: Any) -> tuple[list[Any], Any]:
        """Return what follows the store's URL, in arrays, and the texts that do not begin with it."""
        found: list[Any] = [texts.slice(0, 0)]
        for beginning in self._beginnings:
            if not len(texts):
                break
            begins = pc.starts_with(texts, pattern=beginning)
            here = texts.filter(begins)
            if len(here):
                found.append(_cut(here, beginning))
                texts = texts.filter(pc.invert(begins))
        return found, texts

    def _locate_all(self, names: Any, others: set[str]) -> tuple[list[str], int, list[str]]:
        """Return the keys of names that begin with a URL or a slash, but not with the store's own. Count those that lie
        elsewhere. `others` gets the keys of other spellings.
        """
        examples: list[str] = names.slice(0, 1).to_pylist()
        keys: list[str] = []
        candidates = self._drop_elsewhere(names)
        outside = len(names) - len(candidates)
        for name in candidates.to_pylist():
            key, more = self._locate(name)
            others |= more
            if key is None:
                outside += 1
            else:
                keys.append(key)
        return keys, outside, examples if outside else []

    def _drop_elsewhere(self, names: Any) -> Any:
        """Return the names without those that surely lie elsewhere: in another bucket, or in this one at a path that
        has no other spelling.
        """
        if self._here:
            names = names.filter(pc.match_substring_regex(names, self._here))
        kept: list[Any] = []
        for bucket in self._buckets:
            begins = pc.starts_with(names, pattern=bucket)
            here, names = names.filter(begins), names.filter(pc.invert(begins))
            paths = _cut(here, bucket)
            is_store = pc.equal(paths, make_scalar(self._roots[0].lstrip("/"), pa.string()))
            kept.append(here.filter(pc.or_(is_store, pc.match_substring_regex(paths, self._odd))))
        return pa.concat_arrays([names, *kept])

    def _locate(self, name: str) -> tuple[str | None, set[str]]:
        """Return the key of a name and those of its other spellings; None: it lies elsewhere."""
        own, others = self._locate_absolute(name)
        if own is None and _ONE_SLASH.match(name):  # it may be relative, too
            relative = self._below_base(name)
            others |= {each for key in relative for each in self._key_spellings(key)}
            if self._is_file:
                others |= self._follow_links(relative)
            if name.partition(":")[0].lower() not in _KINDS:
                own = next(iter(relative), None)
        return own, others

    def _below_base(self, name: str) -> list[str]:
        """Return the key of a relative name, if it lies in the store."""
        below, _ = self._strip_beginnings(make_array([self._base + name], pa.string()))
        return [key for part in below for key in part.to_pylist()]

    def _locate_absolute(self, name: str) -> tuple[str | None, set[str]]:
        location = _parse_location(name)
        if location is None:
            return None, set()
        is_path = not location.kind
        if not is_path and (location.kind, location.host.lower()) != (self._kind, self._host.lower()):
            return None, set()
        paths = spellings(location.path)
        others = {key for path in paths for below in self._keys_of_path(path) for key in self._key_spellings(below)}
        if self._is_file:
            real = self._real_path(location.path)
            others |= {*self._keys_of_path(real), *self._follow_links(others)}
        if is_path and not (self._is_file and others):  # relative, with a slash too many
            relative = self._below_base(location.path.lstrip("/"))
            others |= {each for key in relative for each in self._key_spellings(key)}
        own = next(iter(self._keys_of_path(location.path)), None)
        if own is None and others and (not self._is_file or not is_path):
            own = min(others)  # only another spelling of the URL leads into the store
        return own, others

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


def _cut(texts: Any, beginning: str) -> Any:
    """Return what follows the beginning that all texts have."""
    return pc.binary_replace_slice(texts, start=0, stop=len(beginning.encode()), replacement="")


def _prepend(beginning: str, texts: Any) -> Any:
    return pc.binary_join_element_wise(make_scalar(beginning, pa.string()), texts, make_scalar("", pa.string()))
