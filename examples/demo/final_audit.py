"""The audit at the end. The repository must be at rest.

- Every branch has exactly the paths and contents that the clients' reports say.
- Whatever a branch, a tag or a commit names is read back, and is what its source file was, byte for byte.
- Nothing else is left in the store: what was garbage is gone, and no upload in parts is open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from examples.demo.client_reports import Expected, Report, expected_branches
from examples.demo.clients import BATCH, SHA256
from examples.demo.source_files import SourceFile
from refstore import Entry, RefstoreError, Repository

READERS: Final = 8
FINDINGS_SHOWN: Final = 20
"""How many findings of one kind are listed; there may be thousands."""


class Row(NamedTuple):
    """A row of the table."""

    what: str
    objects: int
    size_bytes: int


class AuditResult(NamedTuple):
    rows: Sequence[Row]
    findings: Sequence[str]
    """Everything that is wrong, a line each; empty if nothing is."""


class NamedObject(NamedTuple):
    """An object, and a name by which it can be read."""

    ref: str
    path: str
    entry: Entry


def audit(
    repo: Repository,
    sizes: Mapping[str, int],
    open_uploads: Iterable[str],
    files: Sequence[SourceFile],
    reports: Mapping[str, Sequence[Report]],
) -> AuditResult:
    """Compare everything that is left with what the clients reported. `sizes`: of all objects in the store, by address.
    `open_uploads`: the keys of uploads in parts, as S3 lists them. `reports`: by client.
    """
    branches = [name.name for name in repo.branches()]
    commits = {commit.id for ref in [*branches, *(each.name for each in repo.tags())] for commit in repo.log(ref)}
    committed = _list_named(repo, sorted(commits))
    staged = {address: item for address, item in _list_named(repo, branches).items() if address not in committed}
    every = [report for of_client in reports.values() for report in of_client]
    unnamed = sorted(sizes.keys() - committed.keys() - staged.keys())
    # an upload that met an error keeps its objects as long as its branch is not committed or reset
    repeated = sum(report.kind == "repeated" for report in every)
    findings = [
        *_compare_branches(repo, branches, expected_branches(reports), {file.path: file.sha256 for file in files}),
        *_read_back(repo, [*committed.values(), *staged.values()]),
        *_shorten(f"left over: {address}, which nothing names" for address in unnamed[repeated * BATCH :]),
        *_shorten(f"left over: the upload in parts of {key!r}" for key in open_uploads),
    ]
    rows = [
        *_count_reports(every, {file.path: file.size_bytes for file in files}, sizes),
        Row(f"named by {len(commits)} commits, read back", len(committed), _sum(sizes, committed)),
        Row("only staged, read back", len(staged), _sum(sizes, staged)),
        Row("left in the store", len(sizes), _sum(sizes, sizes)),
    ]
    return AuditResult(rows, findings)


def _list_named(repo: Repository, refs: Iterable[str]) -> dict[str, NamedObject]:
    """Return the objects that these refs name, by address."""
    return {
        item.entry.address: NamedObject(ref, item.path, item.entry)
        for ref in refs
        for item in repo.list(ref)
        if item.entry is not None
    }


def _compare_branches(
    repo: Repository, branches: Sequence[str], expected: Mapping[str, Expected], sha256: Mapping[str, str]
) -> Iterator[str]:
    """Compare paths, and which content each has. `sha256`: by the path of the source file."""
    for branch in sorted({*branches} ^ expected.keys()):
        yield f"branch {branch!r} {'is missing' if branch in expected else 'should be gone'}"
    for branch in sorted({*branches} & expected.keys()):
        certain, possible = expected[branch].certain, expected[branch].possible
        contents = {item.path: item.entry.metadata[SHA256] for item in repo.list(branch) if item.entry is not None}
        allowed = {path: sha256[source] for path, source in (possible | certain).items()}
        yield from _shorten(f"{branch!r} misses {path!r}" for path in certain if path not in contents)
        yield from _shorten(
            f"{branch!r} has {'another content' if path in allowed else 'what should be gone'} at {path!r}"
            for path, digest in contents.items()
            if digest != allowed.get(path)
        )


def _read_back(repo: Repository, named: Sequence[NamedObject]) -> Iterator[str]:
    def read(item: NamedObject) -> str | None:
        """Return what is wrong with the object; None if nothing is."""
        digest = hashlib.sha256()
        try:
            for chunk in repo.get(item.ref, item.path):
                digest.update(chunk)
        except RefstoreError as error:
            return f"lost: {item.entry.address}: {error}"
        if digest.hexdigest() != item.entry.metadata[SHA256]:
            return f"altered: {item.entry.address}, which {item.ref} names {item.path!r}, is not what its file was"
        return None

    with ThreadPoolExecutor(READERS, thread_name_prefix="demo-reader") as pool:
        yield from _shorten(finding for finding in pool.map(read, named) if finding is not None)


def _count_reports(reports: Sequence[Report], size_of: Mapping[str, int], left: Mapping[str, int]) -> Iterator[Row]:
    """Count what the clients reported. `size_of`: by the path of the source file; `left`: by address."""
    for kind in ("uploaded", "linked", "abandoned", "left open", "copied", "moved", "deleted"):
        sources = [source for report in reports if report.kind == kind for source in report.sources.values()]
        yield Row(kind, len(sources), _sum(size_of, sources))
    written = [pair for report in reports for pair in zip(report.addresses, report.sources.values(), strict=False)]
    reaped = [source for address, source in written if address not in left]
    yield Row("reaped", len(reaped), _sum(size_of, reaped))


def _sum(sizes: Mapping[str, int], keys: Iterable[str]) -> int:
    return sum(sizes.get(key, 0) for key in keys)


def _shorten(findings: Iterable[str]) -> Iterator[str]:
    found = list(findings)
    yield from found[:FINDINGS_SHOWN]
    if len(found) > FINDINGS_SHOWN:
        yield f"... and {len(found) - FINDINGS_SHOWN} more of these"
