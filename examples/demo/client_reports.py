"""What the clients report, and what must therefore be on the branches.

A report is a line of JSON. A client writes it to its file as soon as the stores have confirmed what it says, so that no
report is lost when the client is killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

Kind = Literal[
    "began", "uploaded", "linked", "abandoned", "left open", "copied", "moved", "deleted", "reset", "repeated"
]
"""began: before an upload; without a report after it, the upload may have landed or not. abandoned: written to issued
addresses, and never linked. left open: begun in parts through S3, and never completed. repeated: a call that met an
error.
"""


class Report(msgspec.Struct, frozen=True):
    kind: Kind
    branch: str
    sources: dict[str, str]
    """Path on the branch -> path of the source file that has its content."""
    addresses: tuple[str, ...] = ()
    """Of the objects that were written, in the order of `sources`."""


class Expected(msgspec.Struct):
    """The contents of a branch: by path, the path of the source file that has its content."""

    certain: dict[str, str]
    possible: dict[str, str]
    """What the killed client was uploading: it may be there in addition."""


_decode: Final = msgspec.json.Decoder(Report).decode


def read_reports(file: Path) -> list[Report]:
    """Read the reports of a client. The last line of a killed one may be half a line, and does not count."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [_decode(line) for line in lines]


def expected_branches(reports: Mapping[str, Sequence[Report]]) -> dict[str, Expected]:
    """Return what must be on each branch at the end of the phases of `main_job.py`. `reports`: by client.

    No two clients write the same path of a branch, so the order of the clients does not matter.
    """
    changes: dict[str, dict[str, str | None]]
    changes = {branch: {} for branch in ("main", "etl", "ml", "landing", "scratch", "doomed", "crash")}
    possible: dict[str, dict[str, str]] = {branch: {} for branch in changes}
    for of_client in reports.values():
        for report in of_client:
            if report.kind in ("uploaded", "linked", "copied", "moved"):
                changes[report.branch] |= report.sources
            elif report.kind == "deleted":
                changes[report.branch] |= dict.fromkeys(report.sources)
            elif report.kind == "reset":
                changes[report.branch].clear()
        last = next((report for report in reversed(of_client) if report.kind != "repeated"), None)
        if last is not None and last.kind == "began":
            possible[last.branch] |= last.sources
    base = {path: source for path, source in changes["main"].items() if path.startswith("lib/")}
    branches = {branch: base | changes[branch] for branch in ("etl", "landing", "scratch", "crash")}
    branches["main"] = changes["main"] | changes["etl"] | changes["ml"] | changes["landing"]  # these were merged
    return {
        branch: Expected({path: source for path, source in sources.items() if source is not None}, possible[branch])
        for branch, sources in branches.items()
    }
