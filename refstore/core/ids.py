"""Names and ids: which are valid, and how new ones are made.

Every name is validated on the way in (a user's mistake: `InvalidName`, `InvalidPath`) and parsed again on the way out
of storage (`refstore/records/keys.py`): a store may have been written by hand, or by an enemy.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NewType, Protocol

from refstore.errors import Invalid, InvalidName, InvalidPath

RepositoryName = NewType("RepositoryName", str)
RepositoryId = NewType("RepositoryId", str)
"""Given once to each created repository and never reused, so that a repository created again under an old name shares
no key with the old one."""
BranchName = NewType("BranchName", str)
TagName = NewType("TagName", str)
Token = NewType("Token", str)
"""A staging token, `<branch>:<id>`: it says which branch it belongs to."""
CommitId = NewType("CommitId", str)
"""Hex SHA-256 of the commit's content."""
Path = NewType("Path", str)
Address = NewType("Address", str)
"""A physical address: a key relative to the repository's namespace (`data/<hour>/<id>`), or, for data that was staged
from outside and is not ours to delete, a full URL."""

UploadId = NewType("UploadId", str)
"""Of a multipart upload: `<hour>.<id>`, from its physical address."""

PATH_BYTES_MAX: Final = 1024
"""S3's own limit for a key, and lakeFS's for a path."""

CONTENT_TYPE_MAX: Final = 256

SIZE_BYTES_MAX: Final = 1 << 53
"""The largest size that a caller can give: every reader of JSON holds whole numbers exactly up to here."""

_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:[ \t]*;[\x20-\x7e]*)?")
"""RFC 9110, 8.3. Not `\\s`: to Python that is every line break of Unicode, and one of them ends a header."""
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
_REPOSITORY_ID = re.compile(r"[a-z0-9][a-z0-9-]{2,62}\.[0-9a-z]{26}")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,254}")
_TOKEN = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_./-]{0,254}):([0-9a-z]{26})")
_COMMIT = re.compile(r"[0-9a-f]{64}")
_ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)
OWN_ADDRESS_PATTERN: Final = r"data/([0-9]{10})/([0-9a-z]{26})"
"""As a regular expression that RE2 reads too. `[0-9]`, not `\\d`: to Python that is every digit of Unicode."""
_OWN_ADDRESS = re.compile(OWN_ADDRESS_PATTERN)
_UPLOAD_ID = re.compile(r"[0-9]{10}\.[0-9a-z]{26}")
_OWN_TIME_ENDS: Final = 26
"""Where the time in an own address ends: after the slice and the first ten digits of the id."""
_ID_LENGTH: Final = 26
_FIRST_MS: Final = 946_684_800_000
_LAST_MS: Final = 4_102_444_800_000
"""Ids of this century are between these times."""
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in lower case: sorts as it counts."""


def repository_name(name: str) -> RepositoryName:
    """Check a repository name by lakeFS's rule: 3 to 63 of a-z, 0-9 and `-`, not first a `-`. Raises InvalidName."""
    if not _REPOSITORY.fullmatch(name):
        raise InvalidName(
            f"{name[:80]!r} is not a repository name; use 3 to 63 of a-z, 0-9 and '-', starting with a letter or digit"
        )
    return RepositoryName(name)


def repository_id(text: str) -> RepositoryId:
    if not _REPOSITORY_ID.fullmatch(text):
        raise InvalidName(f"{text[:120]!r} is not a repository id")
    return RepositoryId(text)


def branch_name(name: str) -> BranchName:
    """Check a branch name. `~`, `^`, `@` and `:` are operators of ref expressions and of tokens. Raises InvalidName."""
    return BranchName(_ref_name(name, "branch"))


def tag_name(name: str) -> TagName:
    return TagName(_ref_name(name, "tag"))


def _ref_name(name: str, kind: str) -> str:
    if not _BRANCH.fullmatch(name) or _COMMIT.fullmatch(name) or _has_dot_segments(name):
        raise InvalidName(
            f"{name[:80]!r} is not a {kind} name; use up to 255 letters, digits and '_ . / -', starting with a letter, "
            "digit or '_'"
        )
    return name


def commit_id(text: str) -> CommitId:
    if not _COMMIT.fullmatch(text):
        raise InvalidName(f"{text[:80]!r} is not a commit id; it is 64 hexadecimal digits")
    return CommitId(text)


def encode_ref(ref: str) -> str:
    """Write a ref as one segment of a path, as in `refstore://REPOSITORY/REF/PATH` and in the keys of S3 clients."""
    return ref.replace("/", "%2F")


def decode_ref(segment: str) -> str:
    """Return the ref that a segment stands for."""
    return _ENCODED_SLASH.sub("/", segment) if "%" in segment else segment


def object_path(path: str) -> Path:
    """Check a path: 1 to 1024 UTF-8 bytes, without NUL, not first a `/`, and without `.` or `..` between slashes.
    Raises InvalidPath.

    NUL separates the Redis driver's members; a dot segment would leave the namespace on a file system. A path that
    begins with a slash would be another one than the same path without, which is what its writer means.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise InvalidPath("a path must be valid Unicode; it has a lone surrogate") from None
    except AttributeError:
        raise InvalidPath(
            f"a path is a text, and this is a {type(path).__name__}; give one such as '2026/11/21.csv' "
            "(of a pathlib.Path: path.as_posix())"
        ) from None
    if not path:
        raise InvalidPath("a path must not be empty")
    if size > PATH_BYTES_MAX:
        raise InvalidPath(f"a path must be at most {PATH_BYTES_MAX} bytes; this one has {size}")
    if path.startswith("/"):
        below = path.lstrip("/")[:80]
        raise InvalidPath(
            f"{path[:80]!r} begins with '/', and paths begin below the branch; "
            + (f"write {below!r}" if below else "give the path of an object")
        )
    if "\0" in path:
        raise InvalidPath("a path must not contain NUL")
    if _has_dot_segments(path):
        raise InvalidPath(f"a path must not contain '.' or '..' between slashes: {path[:80]!r}")
    return Path(path)


def content_type(text: str) -> str:
    """Check a content type, which may be empty. Raises Invalid."""
    if text and not is_content_type(text):
        raise Invalid(
            f"{text[:80]!r} is not a content type (RFC 9110, 8.3); give type/subtype, of at most {CONTENT_TYPE_MAX} "
            "characters, or leave it out"
        )
    return text


def object_size(size_bytes: int) -> int:
    """Check a size that a caller gives. Raises Invalid."""
    if not 0 <= size_bytes <= SIZE_BYTES_MAX:
        raise Invalid(
            f"{size_bytes:.3e} bytes is no object's size; give the whole number of its bytes, from 0 to "
            f"{SIZE_BYTES_MAX:,}"
        )
    return size_bytes


def is_content_type(text: str) -> bool:
    return len(text) <= CONTENT_TYPE_MAX and _CONTENT_TYPE.fullmatch(text) is not None


def path_prefix(prefix: str) -> str:
    """Check a prefix to list or reset: the beginning of a path, or empty. Dots at its end may begin a name."""
    if prefix:
        object_path(f"{prefix[:-1]}x" if prefix.endswith(".") else prefix.rstrip("/") or prefix)
    return prefix


def staging_token(text: str) -> Token:
    if not _TOKEN.fullmatch(text):
        raise InvalidName(f"{text[:120]!r} is not a staging token")
    return Token(text)


def branch_of(token: Token) -> BranchName:
    """Return the branch that a token belongs to."""
    return BranchName(token.rpartition(":")[0])


def own_address(text: str) -> Address:
    """Check an address that refstore made inside the namespace, so that no text leads out of it. Raises InvalidName."""
    if not _OWN_ADDRESS.fullmatch(text):
        raise InvalidName(
            f"{text[:120]!r} is not a physical address of this repository, which looks like data/<hour>/<id>; "
            "for a path, use repo.stat or repo.why_path (`refstore stat`, `refstore why`)"
        )
    return Address(text)


def upload_id(text: str) -> UploadId:
    """Check the id of a multipart upload. Raises InvalidName."""
    if not _UPLOAD_ID.fullmatch(text):
        raise InvalidName(f"{text[:120]!r} is not the id of an upload; use the one that its beginning answered")
    return UploadId(text)


def upload_id_of(address: Address) -> UploadId:
    """Return the id of the upload at an own address."""
    return UploadId(address.removeprefix("data/").replace("/", "."))


def upload_address(id_: UploadId) -> Address:
    """Return the physical address of an upload."""
    return Address(f"data/{id_.replace('.', '/')}")


def is_own(address: Address) -> bool:
    """Return whether refstore made the address, and so may delete its blob."""
    return _OWN_ADDRESS.fullmatch(address) is not None


def address_time_ms(address: Address) -> int | None:
    """Return when an own address was made, by its id; None if the id does not tell (see `RandomIds`)."""
    return _parse_time(address[:_OWN_TIME_ENDS])


@lru_cache(maxsize=4096)
def _parse_time(beginning: str) -> int | None:
    """Return the time in the first digits of an id, if it agrees with the slice before them."""
    _, slice_, digits = beginning.split("/")
    try:
        at_ms = _read_time(digits)
        return at_ms if slice_of(at_ms) == slice_ else None
    except (ValueError, OverflowError, OSError):
        return None


def id_time_ms(id_: str) -> int | None:
    """Return when an id was made (see `RandomIds`); None for an id without a plausible time."""
    if len(id_) != _ID_LENGTH or any(digit not in _ALPHABET for digit in id_):
        return None
    at_ms = _read_time(id_[:10])
    return at_ms if _FIRST_MS <= at_ms < _LAST_MS else None


def _read_time(digits: str) -> int:
    """Return the time that ten digits stand for. Raises ValueError."""
    return sum(_ALPHABET.index(digit) << shift for digit, shift in zip(digits, range(45, -5, -5), strict=True))


def slice_of(at_ms: int) -> str:
    """Return the slice of an address made at that time: the UTC hour, `YYYYMMDDHH`. Slices sort by time."""
    return _hour(at_ms // 3_600_000)


@lru_cache(maxsize=256)
def _hour(since_epoch: int) -> str:
    return datetime.fromtimestamp(since_epoch * 3600, UTC).strftime("%Y%m%d%H")


_DOT_SEGMENTS: Final = frozenset({".", ".."})
_DIGIT_OF: Final = bytes(ord(_ALPHABET[byte & 31]) for byte in range(256))
"""For `bytes.translate`: each byte becomes a digit, and all digits are equally likely."""


@lru_cache(maxsize=64)
def _format_time(at_ms: int) -> str:
    """Return the first ten characters of an id."""
    return "".join(_ALPHABET[(at_ms >> shift) & 31] for shift in range(45, -1, -5))


class Ids(Protocol):
    """Makes new ids. Passed in, so that a simulated run can be repeated to the letter."""

    def new_id(self, at_ms: int) -> str:
        """Return a new id: 26 characters that sort by time."""
        ...


class RandomIds:
    """48 bits of time and 80 random bits, as a ULID has."""

    def new_id(self, at_ms: int) -> str:
        return _format_time(at_ms) + os.urandom(16).translate(_DIGIT_OF).decode()


def new_address(ids: Ids, at_ms: int) -> Address:
    return Address(f"data/{slice_of(at_ms)}/{ids.new_id(at_ms)}")


def new_token(ids: Ids, branch: BranchName, at_ms: int) -> Token:
    return Token(f"{branch}:{ids.new_id(at_ms)}")


def new_repository_id(ids: Ids, name: RepositoryName, at_ms: int) -> RepositoryId:
    return RepositoryId(f"{name}.{ids.new_id(at_ms)}")


def _has_dot_segments(path: str) -> bool:
    return "." in path and not _DOT_SEGMENTS.isdisjoint(path.split("/"))
