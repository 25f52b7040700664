"""List the open multipart uploads of a branch, and the parts of one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from refstore.context import Context
from refstore.core.ids import BranchName, Path, UploadId
from refstore.operations.multipart import newest_parts, read_open
from refstore.records import keys
from refstore.records.reference_records import Issued
from refstore.versioning.multipart_uploads import RegisteredUpload, UploadName, WrittenPart


class PartsPage(NamedTuple):
    parts: tuple[WrittenPart, ...]
    has_more: bool


def list_parts(ctx: Context, name: UploadName, *, after: int, amount: int) -> tuple[RegisteredUpload, PartsPage]:
    """Return the upload, and its parts with numbers after one. Raises UploadNotFound."""
    registered = read_open(ctx, name)
    page: list[WrittenPart] = []
    numbers: set[int] = set()
    for item in ctx.uploads.scan_parts(name.upload_id, after=after):
        numbers.add(item.number)
        if len(numbers) > amount + 1:
            break
        page.append(item)
    found = tuple(newest_parts(page).values())
    return registered, PartsPage(found[:amount], len(found) > amount)


class UploadsPage(NamedTuple):
    uploads: tuple[RegisteredUpload, ...]
    common_prefixes: tuple[str, ...]
    next_path: str
    """The last path, or common prefix, of a page that has more behind it; '': it has not."""
    next_upload_id: str
    """The upload of that path; '' for a common prefix."""


def list_uploads(
    ctx: Context,
    branch: BranchName,
    *,
    prefix: str = "",
    delimiter: str = "",
    after_path: str = "",
    after_upload_id: str = "",
    amount: int = 1000,
) -> UploadsPage:
    """Return a page of the open uploads of a branch, in the order of their paths, then of their beginning.

    `after_path`: after all uploads of this path, or common prefix; with `after_upload_id`, after that one of them.
    """
    ctx.branches.read_open(branch)
    of_branch = keys.uploads_of(branch)
    shown: list[RegisteredUpload | str] = []
    after = ""
    if after_path and after_upload_id:
        after = keys.upload(ctx.repo, branch, Path(after_path), UploadId(after_upload_id)).name
    elif after_path:
        is_folded = bool(delimiter) and after_path.endswith(delimiter)
        last = of_branch + after_path if is_folded else keys.uploads_of_path(branch, after_path)
        after = last + keys.LAST_CODE_POINT
    while len(shown) <= amount:
        page = list(islice(ctx.uploads.scan(branch, prefix=prefix, after=after, page=amount + 1), amount + 1))
        if not page:
            break
        for registered in _select_open(ctx, page):
            path = registered.name.path
            after = keys.upload(ctx.repo, *registered.name).name
            cut = path.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                shown.append(path[: cut + len(delimiter)])
                after = of_branch + path[: cut + len(delimiter)] + keys.LAST_CODE_POINT
                break
            shown.append(registered)
            if len(shown) > amount:
                break
        else:
            after = keys.upload(ctx.repo, *page[-1].name).name
    kept = shown[:amount]
    end = kept[-1] if kept and len(shown) > amount else ""
    return UploadsPage(
        tuple(item for item in kept if isinstance(item, RegisteredUpload)),
        tuple(item for item in kept if isinstance(item, str)),
        end if isinstance(end, str) else end.name.path,
        "" if isinstance(end, str) else end.name.upload_id,
    )


def _select_open(ctx: Context, page: Sequence[RegisteredUpload]) -> list[RegisteredUpload]:
    now = ctx.clock.now_ms()
    states = ctx.references.get_many([item.name.address for item in page])
    return [
        item
        for item, state in zip(page, states, strict=True)
        if isinstance(state, Issued) and state.token_id == item.record.token_id and state.expires_ms > now
    ]
