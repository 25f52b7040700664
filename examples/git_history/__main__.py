"""The command: replay, let expire, compare. It exits with 1 if anything is lost, left over, or different from git."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import refstore
from examples.command_line import make_parser
from examples.git_history import comparing, expected, replaying
from examples.git_history.collecting import collect_expired, release_references
from examples.git_history.comparing import Compared
from examples.git_history.expected import Rules
from examples.git_history.plumbing import Git
from examples.git_history.replaying import History, Replayed, Told
from refstore import RefstoreError, StepProgress
from refstore.errors import Conflict, Invalid
from refstore_gc import CollectReport

DESCRIPTION = """\
Replay a git repository into refstore with its dates, branches and merges. Let its history expire by rules, and run
the reaper and the offline job. Compare what is left with the objects that git's active commits reach. The git
repository is only read. The exit code is 1 if anything is lost, left over, or different from git.
"""
EPILOG = """\
examples:
  python -m examples.git_history ..                     this project's neighbour, half of its history expired
  python -m examples.git_history ~/project --days 30 --branch-days main=90
  python -m examples.git_history ~/project --data ./lake --json    # then: refstore --data ./lake repo list
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    repository: str
    history: History
    done: Replayed
    rules: Rules
    active: set[str]
    collected: CollectReport
    compared: Compared


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            kv, objects = _stores(asked.data, stack)
            git = Git(asked.repository)
            history = _history(git, asked.max_commits, dangling=asked.dangling)
            rules = _rules(asked, history)
            outcome = prove(git, history, rules, kv, objects, _Told())
            shown = _shown(outcome, time.monotonic() - began)
    except RefstoreError as error:
        print(f"examples.git_history: {error}", file=sys.stderr)
        return 2 if isinstance(error, Invalid) else 1
    print(json.dumps(shown, indent=1) if asked.json else _text(shown))
    return 0 if shown["ok"] else 1


def _stores(data: Path | None, stack: ExitStack) -> tuple[str, str]:
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
        return _embedded_urls(data)
    kv, objects = _embedded_urls(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refstore-git-"))))
    return kv, f"{objects}?fsync=0"


def _embedded_urls(data: Path) -> tuple[str, str]:
    """Return the URLs of KV and objects that `refstore --data` takes for a folder."""
    folder = data.resolve().as_uri().removeprefix("file://")
    return f"sqlite://{folder}/kv.sqlite", f"file://{folder}/objects"


def _history(git: Git, most: int, *, dangling: bool) -> History:
    """Read the history. Raises Invalid if there is nothing to replay."""
    history = replaying.chosen(git, most=most, dangling=dangling)
    if not history.heads:
        raise Invalid(
            "there is no branch with a commit among those that would be replayed; commit something, or raise "
            "--max-commits"
        )
    return history


def prove(git: Git, history: History, rules: Rules, kv: str, objects: str, told: Told) -> Outcome:
    """Replay, expire and compare. Raises Conflict if a commit's period ended while the job ran, because then the
    expected result is unknown.
    """
    name = f"git-{secrets.token_hex(6)}"
    with refstore.create(kv=kv, objects=objects) as lake:
        done = replaying.replay(lake, name, git, history, told)
        done.repo.set_retention(json.dumps(rules.document()))
        release_references(lake, name)
        before = expected.active(git, history, done, rules, datetime.now(UTC))

        def tell(now: StepProgress) -> None:
            told(now.step, now.done_items, now.total_items or 0)

        collected = collect_expired(kv, objects, name, tell)
        active = expected.active(git, history, done, rules, datetime.now(UTC))
        if active != before:
            raise Conflict("a commit's period ended while the offline job ran; run this again")
        compared = comparing.compare(git, history, done, active, told)
        return Outcome(name, history, done, rules, active, collected, compared)


def _rules(asked: argparse.Namespace, history: History) -> Rules:
    branches: dict[str, int] = {}
    for given in asked.branch_days:
        branch, equals, days = given.rpartition("=")
        if not equals or not days.isdigit():
            raise Invalid(f"--branch-days {given!r} is not NAME=DAYS; write it as main=90")
        branches[branch] = int(days)
    days = asked.days
    if days is None:
        dates = sorted(commit.date for commit in history.commits.values())
        days = max(0, (datetime.now(UTC) - dates[len(dates) // 2]).days)
    return Rules(days=days, branches=branches, keep_last=asked.keep_last)


def _shown(outcome: Outcome, seconds: float) -> dict[str, Any]:
    history, done, compared = outcome.history, outcome.done, outcome.compared
    collected = outcome.collected
    findings = list(compared.findings)
    if collected.errors or collected.failed_objects or collected.reclaimable.objects:
        findings.append("sweep: the store did not delete everything that was marked")
    return {
        "ok": not findings,
        "repository": outcome.repository,
        "rules": outcome.rules.document(),
        "git": {
            "commits": len(history.commits),
            "merges": sum(len(commit.parents) > 1 for commit in history.commits.values()),
            "merges_resolved_by_hand": len(done.between),
            "branches": len(history.heads),
            "tags": len(history.tags),
            "names_left_out": history.left_out,
        },
        "uploaded": len(done.blobs),
        "active_commits": len(outcome.active),
        "expired_commits": compared.expired,
        "swept": {"deleted": collected.deleted_count.objects},
        "objects_left": compared.objects,
        "files_compared": compared.files,
        "bytes_compared": compared.bytes_read,
        "gone_and_said_so": compared.refused,
        "findings": findings,
        "seconds": round(seconds, 1),
    }


def _text(shown: dict[str, Any]) -> str:
    git = shown["git"]
    lines = [
        (
            f"git: {git['commits']} commits, {git['merges']} of them merges, {git['branches']} branches, {git['tags']} "
            "tags"
        ),
        f"rules: {json.dumps(shown['rules'])}",
        (
            f"{shown['uploaded']} objects uploaded; {shown['active_commits']} commits active, "
            f"{shown['expired_commits']} expired"
        ),
        f"swept: {shown['swept']}; {shown['objects_left']} objects are left",
        (
            f"{shown['files_compared']} files of active commits compared with git's, {shown['bytes_compared']:,} bytes "
            "read"
        ),
        *shown["findings"],
    ]
    verdict = "The lake has exactly the objects of git's active commits, byte for byte, and no others."
    return "\n".join([*lines, f"{verdict if shown['ok'] else 'The lake DIFFERS from git.'} {shown['seconds']:.0f} s."])


class _Told:
    """Prints progress on standard error: about one line a second, if something has changed."""

    def __init__(self) -> None:
        self._last = 0.0
        self._said = ""

    def __call__(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        said = f"  {what}{f' {done}/{of}' if of else ''}"
        if said == self._said or (self._said.startswith(f"  {what}") and done != of and now - self._last < 1):
            return
        self._said, self._last = said, now
        print(said, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("examples.git_history", DESCRIPTION, EPILOG)
    parser.add_argument(
        "repository", type=Path, metavar="REPOSITORY", help="a git repository; also a bare one or a shallow clone"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="the folder of the lake, which is kept; default: a temporary folder"
    )
    parser.add_argument(
        "--days", type=_count, metavar="N", help="default_retention_days; default: about half of the commits expire"
    )
    parser.add_argument(
        "--branch-days", action="append", default=[], metavar="NAME=N", help="the days of one branch; may be repeated"
    )
    parser.add_argument(
        "--keep-last", type=_count, default=0, metavar="N", help="commits of each branch that never expire"
    )
    parser.add_argument(
        "--max-commits",
        type=_count,
        default=500,
        metavar="N",
        help="how many of the newest commits to replay; default: 500",
    )
    parser.add_argument(
        "--no-dangling",
        dest="dangling",
        action="store_false",
        help="leave out commits that no branch or tag reaches",
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


if __name__ == "__main__":
    sys.exit(main())
