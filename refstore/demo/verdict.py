"""Judge the result of the demo in four ways: by the audit, the ledger, the bytes, and the count.

audit      no named object is missing, and no unnamed object is left (`refstore/demo/invariants.py`, which shares no
           reading code with the product)
ledger     every branch has exactly what the clients reported
bytes      every blob that a branch or commit names has the digest of its source file
count      blobs that the stores confirmed = blobs that are left + deletions in the reapers' journal; the difference is
           at most what a killed client could not report
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from refstore.core.ids import Address, is_own
from refstore.demo.invariants import Audit, audit
from refstore.demo.ledger import Ledger
from refstore.demo.sources import Source
from refstore.errors import ObjectNotFound
from refstore.objects.base import ObjectStore
from refstore.repository import Repository

READERS: Final = 4
SHOWN: Final = 20
"""How many findings of one kind are listed; there may be thousands."""
GONE: Final = "gone"
JOURNAL: Final = "_refstore/journal/"


class Line(NamedTuple):
    """One line of the table."""

    what: str
    objects: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    repository: str
    lines: tuple[Line, ...]
    findings: tuple[str, ...]
    """Everything that is wrong, one line each; empty if nothing is."""
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


class Reaped(NamedTuple):
    """The deletions that the store confirmed, from the journal, each address once."""

    objects: int
    size_bytes: int


class _Names(NamedTuple):
    """What the product shows, read through the SDK."""

    branches: dict[str, dict[str, Address]]
    committed: set[Address]
    checksums: dict[Address, str]
    """The checksums in the entries; '' if the writer gave none."""

    @property
    def staged(self) -> set[Address]:
        """Blobs that a branch names, and no commit."""
        return {address for named in self.branches.values() for address in named.values()} - self.committed

    @property
    def all(self) -> set[Address]:
        return self.committed | self.staged


def reach(repo: Repository, ledger: Ledger, sources: Sequence[Source], *, read_back: int | None = None) -> Verdict:
    """Judge everything. The repository must be at rest. `read_back`: how many blobs, chosen at random, to read; None:
    all.
    """
    ctx = repo.context
    audited = audit(ctx.kv, ctx.objects, ctx.repo, now_ms=ctx.clock.now_ms(), grace_seconds=ctx.grace_seconds)
    names = _names(repo)
    there = {info.key: info.size_bytes for info in ctx.objects.list("data/")}
    chosen = _chosen(names, read_back)
    digests = {address: names.checksums[address] if address in there else GONE for address in names.all - chosen}
    digests |= _digests(ctx.objects, chosen)
    reaped = _reaped(repo, ledger)
    findings = [
        *_some("audit", audited.findings() if not audited.ok else []),
        *_ledger_findings(names, digests, ledger, sources),
        *_byte_findings(names, digests, ledger, sources),
        *_count_findings(ledger, reaped, len(there)),
    ]
    return Verdict(
        repo.name,
        tuple(_lines(ledger, names, audited, reaped, there)),
        tuple(findings),
        tuple(_notes(ledger, audited, len(chosen), len(digests))),
    )


def _names(repo: Repository) -> _Names:
    checksums: dict[Address, str] = {}

    def listing(ref: str) -> dict[str, Address]:
        found = {
            item.path: item.entry for item in repo.list(ref) if item.entry is not None and is_own(item.entry.address)
        }
        checksums.update((entry.address, entry.checksum) for entry in found.values())
        return {path: entry.address for path, entry in found.items()}

    branches = {str(name): listing(name) for name, _ in repo.branches()}
    refs = [*(f"{name}@" for name in branches), *(tag for tag, _ in repo.tags())]
    commits = {commit for ref in refs for commit, _ in repo.log(ref)}
    committed = {address for commit in sorted(commits) for address in listing(commit).values()}
    return _Names(branches, committed, checksums)


def _chosen(names: _Names, read_back: int | None) -> set[Address]:
    """Return the blobs to read back: at least all that have no recorded checksum."""
    if read_back is None:
        return names.all
    known = sorted(address for address in names.all if names.checksums[address])
    return names.all.difference(known).union(random.sample(known, min(read_back, len(known))))


def _digests(objects: ObjectStore, addresses: Iterable[Address]) -> dict[Address, str]:
    """Return the SHA-256 of each blob, read from the store; GONE if it does not exist."""

    def digest(address: Address) -> str:
        found = hashlib.sha256()
        try:
            for chunk in objects.get(address):
                found.update(chunk)
        except ObjectNotFound:
            return GONE
        return found.hexdigest()

    ordered = sorted(addresses)
    with ThreadPoolExecutor(READERS, thread_name_prefix="refstore-compare") as pool:
        return dict(zip(ordered, pool.map(digest, ordered), strict=True))


def _reaped(repo: Repository, ledger: Ledger) -> Reaped:
    """Read the journal without the reaper's code: `<name>.began` lists a batch, `<name>.ended` the addresses that were
    not deleted.

    S3 confirms the deletion of missing keys, too, so addresses that no client wrote to are left out.
    """
    objects = repo.context.objects
    batches = {info.key for info in objects.list(JOURNAL)}
    sizes: dict[str, int] = {}
    for key in sorted(batches):
        if key.endswith(".ended.jsonl.gz"):
            began = _segment(objects, key.replace(".ended.", ".began."))
            kept = {line["address"] for line in _segment(objects, key)}
            sizes |= {line["address"]: line["size_bytes"] for line in began if line["address"] not in kept}
    gone = sizes.keys() - ledger.unused
    return Reaped(len(gone), sum(ledger.size_of.get(address, max(0, sizes[address])) for address in gone))


def _segment(objects: ObjectStore, key: str) -> list[dict[str, Any]]:
    """Return the lines of a segment after its header."""
    return [json.loads(line) for line in gzip.decompress(objects.read(key)).splitlines()[1:]]


def _ledger_findings(
    names: _Names, digests: dict[Address, str], ledger: Ledger, sources: Sequence[Source]
) -> list[str]:
    expected = [source.sha256 for source in sources]
    missing = sorted(ledger.branches.keys() - names.branches.keys())
    found = [f"ledger: branch {branch!r} should be there and is not" for branch in missing]
    for branch, named in names.branches.items():
        if branch not in ledger.branches:
            found.append(f"ledger: branch {branch!r} should not be there any more")
            continue
        different = ledger.compare(branch, {path: digests[address] for path, address in named.items()}, expected)
        for kind, paths in zip(different._fields, different, strict=True):
            found += _some(f"ledger: on {branch!r}, {kind}", [repr(path) for path in paths])
    return found


def _byte_findings(names: _Names, digests: dict[Address, str], ledger: Ledger, sources: Sequence[Source]) -> list[str]:
    """Compare the bytes, also of blobs that only older commits name. Blobs that a killed client did not report have no
    source to compare with.
    """
    wrong = [
        f"{address}: {digests[address]}, not {sources[source].path} ({sources[source].sha256})"
        for address in sorted(names.all)
        if (source := ledger.source_of.get(address)) is not None and digests[address] != sources[source].sha256
    ]
    return _some("bytes", wrong)


def _count_findings(ledger: Ledger, reaped: Reaped, left: int) -> list[str]:
    reported = sum(ledger.counts[how] for how in ("uploaded", "linked", "abandoned"))
    unreported = left + reaped.objects - reported
    if 0 <= unreported <= ledger.maybe_blobs:
        return []
    may = f"{reported} blobs were reported, and at most {ledger.maybe_blobs} may have been written in addition"
    return [f"count: {may}; {left} left + {reaped.objects} reaped = {left + reaped.objects}"]


def _lines(ledger: Ledger, names: _Names, audited: Audit, reaped: Reaped, there: dict[str, int]) -> list[Line]:
    counts = ledger.counts
    told = sum(counts[how] for how in ("uploaded", "linked", "abandoned"))

    def size(addresses: Iterable[Address]) -> int:
        return sum(there.get(address, 0) for address in addresses)

    return [
        Line("uploaded", counts["uploaded"], counts["uploaded bytes"]),
        Line("written by others and linked", counts["linked"], counts["linked bytes"]),
        Line("written by others, never linked", counts["abandoned"], counts["abandoned bytes"]),
        Line("written by the killed client, unreported", len(there) + reaped.objects - told),
        Line("names copied or moved", counts["copied"] + counts["moved"]),
        Line("commits", audited.commits),
        Line("committed", len(names.committed), size(names.committed)),
        Line("still staged", len(names.staged), size(names.staged)),
        Line("held by a live token, unnamed", audited.held),
        Line("issued, not expired", audited.issued),
        Line("in grace", audited.in_grace),
        Line("reaped", reaped.objects, reaped.size_bytes),
        Line("left in the store", len(there), sum(there.values())),
    ]


def _notes(ledger: Ledger, audited: Audit, read: int, named: int) -> list[str]:
    compared = f"all {named}" if read == named else f"{read} of {named}, the others by the checksums on record"
    looked = f"{audited.branches} branches, {audited.commits} commits and {audited.objects} objects audited"
    notes = [f"named blobs read back and compared: {compared}; {looked}"]
    notes += [f"refused {count} times, as required: {what}" for what, count in ledger.refused.items()]
    if ledger.retries:
        notes.append(
            f"{len(ledger.retries)} calls were made again, as their errors allowed; first: {ledger.retries[0]}"
        )
    if audited.garbage:
        notes.append(f"{len(audited.garbage)} records are left to scrub; first: {audited.garbage[0]}")
    return notes


def _some(kind: str, findings: Sequence[str]) -> list[str]:
    shown = [f"{kind}: {text}" for text in findings[:SHOWN]]
    return [*shown, f"{kind}: ... and {len(findings) - SHOWN} more"] if len(findings) > SHOWN else shown
