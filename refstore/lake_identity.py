"""The id of a lake, which its KV and its object store both hold.

    KV              configuration/lake    LakeRecord
    object store    _refstore/lake        the id

With the KV of one lake and the object store of another, everything would look lost or unreferenced. So every process
compares the two ids before it uses a lake, and goes on only if they are one. An empty folder, where a disk is not
mounted, has no id, and is refused as well.

A new lake gets its id in three steps: it is written to the KV as not confirmed, then to the object store where none is,
then confirmed in the KV. Processes that make one lake at once agree in the first step. After a crash the next process
goes on. An object store without an id is taken if nothing of a lake is in it and the KV has no repositories; or if a
namespace in it says that it belongs to a repository of the KV.

A lake in one folder may be moved and copied with it (`mv`, `cp -r`). Two copies have the same id, and each has files of
its own: its KV, its objects, its witnesses. What lies outside of the folder (a namespace elsewhere, or behind a
symbolic link or a mount) they would share, and each would delete there what only the other one names. So such a store
has an object that says which file the KV is, by its inode and the time at which it was made:

    object store    _refstore/holder      the first copy that opened the store; others refuse it

A move to another disk, and a KV that was put back from a backup, have another file, too: an operator then says that
there is no other copy (`refstore kv reconcile`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from refstore.agreed_durations import check_copy_state
from refstore.core.file_identity import read_file_identity
from refstore.core.ids import RepositoryId
from refstore.core.redaction import redact_url
from refstore.errors import (
    AlreadyExists,
    Contention,
    CorruptObject,
    LakeReadOnly,
    ObjectNotFound,
    ObjectsUnavailable,
    WrongStore,
)
from refstore.kv.base import ABSENT, KV, Absent
from refstore.namespaces import HOLDER_OBJECT, NAMESPACE_OBJECT, folder_url
from refstore.objects.base import OWN_FILES, ObjectStore, put_if_new
from refstore.objects.named_stores import absolute_url, is_relative
from refstore.objects.store_urls import parse_store_url
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.lake_records import LakeRecord
from refstore.records.repository_records import RepositoryRecord

LAKE_OBJECT: Final = "_refstore/lake"
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
"""How `/proc/self/mountinfo` writes a space, and the like."""
_NO_DATA: Final = (LAKE_OBJECT, f"{OWN_FILES}doctor/")
"""What the keys of own files begin with that are no data of a lake."""
_ID_BYTES_MAX: Final = 200
_ATTEMPTS: Final = 16
MOUNTS: Final = Path("/proc/self/mountinfo")


def agree_on_id(kv: KV, store: ObjectStore, new_id: str, make_store: Callable[[], None], *, read_only: bool) -> str:
    """Return the id of the lake that the KV and the object store belong to; a new lake gets `new_id`.

    `make_store`: makes the folder of a new lake. `read_only`: write nothing; '' is a lake without an id. Raises
    WrongStore, Contention, CorruptObject, KVUnavailable, ObjectsUnavailable.
    """
    for _ in range(_ATTEMPTS):
        raw = kv.get(keys.LAKE)
        try:
            lake_id = _agree_once(kv, store, raw, new_id, make_store, read_only=read_only)
        except WrongStore:
            if kv.get(keys.LAKE) == raw:
                raise
            continue  # another process has just made the lake
        if lake_id is not None:
            return lake_id
    raise Contention("other processes kept changing the lake's id; make the same call again")


def check_kv_open(kv: KV) -> None:
    """Raise WrongStore if the lake moves, or has moved, to another KV."""
    check_copy_state(kv.get(keys.KV_COPY))


def check_kv(kv: KV, lake_id: str) -> None:
    """Raise WrongStore unless the KV still holds the id, and the lake is open in it."""
    check_kv_open(kv)
    record = decode_optional(kv.get(keys.LAKE), LakeRecord)
    if record is None or record.id != lake_id:
        raise WrongStore(
            f"the KV is not that of lake {lake_id} any more: it {f'is of {record.id}' if record else 'has no id'}; see "
            "which KV answers, and start this process again"
        )


def check_store(store: ObjectStore, lake_id: str) -> None:
    """Raise WrongStore unless the object store holds the id."""
    stored = read_id(store)
    if stored == lake_id:
        return
    shown = redact_url(store.url)
    if not stored:
        raise WrongStore(
            f"the KV is of lake {lake_id}, and {shown} does not hold that id ({LAKE_OBJECT}); check that its disk is "
            "mounted, and that it is the right folder or bucket. If it is, and has only lost that object, run "
            "`refstore kv reconcile`"
        )
    raise WrongStore(
        f"the KV is of lake {lake_id}, and {shown} is of lake {stored}; name a KV and an object store that belong "
        "together (`refstore config` shows what is set)"
    )


def read_id(store: ObjectStore) -> str:
    """Return the id that the object store holds; '' if it holds none."""
    try:
        body = store.read(LAKE_OBJECT).strip()
    except ObjectNotFound:
        return ""
    if not body or len(body) > _ID_BYTES_MAX or not body.isalnum():
        raise CorruptObject(
            f"{LAKE_OBJECT} in {redact_url(store.url)} is no id of a lake; restore it from a backup of the object store"
        )
    return body.decode()


def read_both(kv: KV, store: ObjectStore) -> tuple[str, str]:
    """Return the ids that the KV and the object store hold; '' for one that holds none."""
    record = decode_optional(kv.get(keys.LAKE), LakeRecord)
    return record.id if record is not None else "", read_id(store)


def check_holder(store: ObjectStore, kv: KV, recorded_url: str) -> None:
    """Raise WrongStore if the store lies outside of the KV's folder, and another copy of that folder holds it."""
    holder = _find_other_holder(store, kv, recorded_url)
    if holder is not None:
        raise WrongStore(
            f"{redact_url(store.url)} lies outside of the lake's folder, and another copy of this folder holds it "
            f"({holder}); two copies would delete what only the other one names. Use the other copy; or, if there is "
            "none any more, because this one was moved here or restored, run `refstore kv reconcile`"
        )


def take_store(store: ObjectStore, kv: KV, recorded_url: str, *, dry_run: bool) -> bool:
    """Let the KV hold a store that another copy holds, and return whether one does."""
    if _find_other_holder(store, kv, recorded_url) is None:
        return False
    if not dry_run:
        store.put(HOLDER_OBJECT, _file_of(kv))
    return True


def _find_other_holder(store: ObjectStore, kv: KV, recorded_url: str) -> str | None:
    """Return which file the KV is that holds the store; None: the store is held by this KV, which takes a new one, or
    a copy of the KV's folder has another one: it lies in there, and is named relative to it.
    """
    place = parse_store_url(store.url)
    if is_relative(recorded_url) and place.scheme == "file" and _is_inside(Path(place.path), kv.local_files[0].parent):
        return None
    own = _file_of(kv)
    holder = _read_holder(store)
    if holder is None:
        with suppress(AlreadyExists, LakeReadOnly):
            put_if_new(store, HOLDER_OBJECT, own)
        holder = _read_holder(store)
    if holder is None:
        return None  # nobody's, and this process only reads
    return None if _is_same_file(holder, own) else holder.decode(errors="replace")[:_ID_BYTES_MAX]


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a copy of the folder has a copy of the path: not through a link, nor through a mount."""
    path, folder = path.resolve(), folder.resolve()
    try:
        if not path.is_relative_to(folder) or path.stat().st_dev != folder.stat().st_dev:
            return False
    except OSError:
        return False  # the store does not answer, and says so when it is read
    try:
        mounts = [Path(os.fsdecode(_unescape(line.split(b" ")[4]))) for line in MOUNTS.read_bytes().splitlines()]
    except OSError:
        return True  # not Linux, which alone mounts a folder of the same disk
    return not any(mount != folder and mount.is_relative_to(folder) and path.is_relative_to(mount) for mount in mounts)


def _unescape(name: bytes) -> bytes:
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), name)


def _read_holder(store: ObjectStore) -> bytes | None:
    try:
        return store.read(HOLDER_OBJECT)
    except ObjectNotFound:
        return None


def _file_of(kv: KV) -> bytes:
    """Return what a move keeps of the KV's file and a copy does not: not the device, which another mount changes."""
    return read_file_identity(kv.local_files[0]).partition(":")[2].encode()


def _is_same_file(one: bytes, other: bytes) -> bool:
    """Return whether the inodes are one, and the times at which the files were made, where both are known."""
    (inode, _, made), (other_inode, _, other_made) = one.partition(b":"), other.partition(b":")
    return inode == other_inode and (made == other_made or b"0" in (made, other_made))


def unify_ids(kv: KV, store: ObjectStore, new_id: str) -> bool:
    """Let the KV and the object store hold one id, whatever they held: the store's; if it has none, the KV's. Return
    whether that was a change.

    Only for those who have made the KV fit the object store.
    """
    known, stored = read_both(kv, store)
    lake_id = stored or _put_id(store, known or new_id)
    kv.set(keys.LAKE, encode(LakeRecord(lake_id, is_confirmed=True)))
    return not known == stored == lake_id


def _agree_once(
    kv: KV, store: ObjectStore, raw: bytes | Absent, new_id: str, make_store: Callable[[], None], *, read_only: bool
) -> str | None:
    """Return the id; None: another process has changed the KV's record meanwhile."""
    record = decode_optional(raw, LakeRecord)
    if record is not None and record.is_confirmed:
        check_store(store, record.id)
        return record.id
    is_empty = next(list_namespaces(kv), None) is None and not kv.scan(keys.CLEARED_REPOSITORIES, limit=1)
    if is_empty and not read_only:
        make_store()
    try:
        stored = read_id(store)
    except ObjectsUnavailable:
        if is_empty and read_only:
            return ""  # there is nothing to read
        raise
    if record is None and stored:
        raise WrongStore(
            f"{redact_url(store.url)} is of lake {stored}, and the KV {'is empty' if is_empty else 'has no id'}; name "
            "the KV of that lake. If it was lost, make it anew with `refstore kv rebuild`; if it was restored from a "
            "backup, run `refstore kv reconcile`"
        )
    if not stored:
        _check_not_another(kv, store, is_empty=is_empty)
    if read_only:
        return record.id if record is not None and stored == record.id else ""
    if record is None:
        record = LakeRecord(new_id)
        if not kv.set_if(keys.LAKE, ABSENT, encode(record)):
            return None
    if _put_id(store, record.id) != record.id:
        check_store(store, record.id)
    kv.set_if(keys.LAKE, encode(record), encode(LakeRecord(record.id, is_confirmed=True)))
    return record.id


def _put_id(store: ObjectStore, lake_id: str) -> str:
    """Write the id where none is, and return the one that is there."""
    with suppress(AlreadyExists):
        put_if_new(store, LAKE_OBJECT, lake_id.encode())
    return read_id(store)


def _check_not_another(kv: KV, store: ObjectStore, *, is_empty: bool) -> None:
    """Raise WrongStore for an object store without an id, unless it is this KV's or nobody's."""
    shown = redact_url(store.url)
    if is_empty:
        used = next((info.key for info in store.list(OWN_FILES) if not info.key.startswith(_NO_DATA)), None)
        if used is not None:
            raise WrongStore(
                f"the KV is empty, and {shown} holds data of a lake ({used}); name the KV of that lake, make it anew "
                "with `refstore kv rebuild`, or name an empty folder or prefix for a new lake"
            )
        return
    folder = parse_store_url(folder_url(store.url))
    for repo, namespace in list_namespaces(kv):
        own = parse_store_url(folder_url(absolute_url(namespace, store.url)))
        if (own.scheme, own.host) != (folder.scheme, folder.host) or not own.path.startswith(folder.path):
            continue
        try:
            owner = store.read(own.path.removeprefix(folder.path) + NAMESPACE_OBJECT)
        except ObjectNotFound:
            continue
        if owner == repo.encode():
            return
    raise WrongStore(
        f"{shown} has no id of a lake, and no namespace of the repositories that the KV knows; check that its disk is "
        "mounted, and that it is the right folder or bucket. If it is, run `refstore kv reconcile`"
    )


def list_namespaces(kv: KV) -> Iterator[tuple[RepositoryId, str]]:
    """Yield id and namespace of every repository that the KV has, also of deleted ones that are not cleared."""
    for partition in (keys.REPOSITORIES, keys.CLOSED_REPOSITORIES):
        for _, value in kv.scan_all(partition):
            record = decode(value, RepositoryRecord)
            yield record.id, record.namespace
