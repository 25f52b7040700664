"""A model of runs, told by the rules alone: no buckets, no files, no tasks. It says which objects a store must have."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from refstore_gc.run_summary import ObjectCount

READING_MS_MAX = 6 * 3_600_000


class Stored(NamedTuple):
    body: bytes
    mtime_ms: int
    etag: str = ""


class Marked(NamedTuple):
    stored: Stored
    """As it was listed."""
    marked_ms: int
    """From when its grace period counts. 0: somebody took the mark back."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The options of a run."""

    grace_ms: int = 0
    min_age_ms: int = 0
    protect: tuple[str, ...] = ()
    never_taken: tuple[str, ...] = ()
    consent: Collection[str] = ()
    share_max: float = 0.5
    floor_objects: int = 1000


@dataclass
class Model:
    objects: dict[str, Stored] = field(default_factory=dict[str, Stored])
    mark: dict[str, Marked] = field(default_factory=dict[str, Marked])
    """What the mark that stands has."""
    names_then: int = 0
    """How many names the last run had of which the mark stood; 0: none did."""

    def unmark(self, marked_ms: int) -> None:
        self.mark = {
            key: each._replace(marked_ms=0) if each.marked_ms == marked_ms else each for key, each in self.mark.items()
        }

    def unmark_all(self) -> None:
        self.mark = {}


class ModelRun:
    """One run: `list_store`, `compare`, `check`, `let_stand` and `sweep`, in this order; others may come in between."""

    def __init__(self, model: Model, rules: Rules, began_ms: int) -> None:
        self.model, self.rules, self.began_ms = model, rules, began_ms
        self.listed: dict[str, Stored] = {}
        self.outcomes: dict[str, ObjectCount] = {}

    def list_store(self, now_ms: int) -> None:
        """List, and read the mark that stands then. `now_ms`: when the reading of names begins."""
        self.listed, self.before, self.reading_ms = dict(self.model.objects), self.model.mark, now_ms
        self.names_then = self.model.names_then

    def compare(self, names: Collection[str], now_ms: int, as_of_ms: int = 0) -> None:
        """Decide about each object. `names`: keys. `now_ms`: when they have been read."""
        self.stood_ms = now_ms
        named_ms = min(self.began_ms, as_of_ms or self.began_ms)
        before, rules = self.before, self.rules
        self.names = len(set(names))
        self.of: dict[str, list[str]] = {each: [] for each in ("named", "young", "protected", "never taken", "unnamed")}
        self.mark: dict[str, Marked] = {}
        self.due: list[str] = []
        new: list[str] = []
        for key, stored in self.listed.items():
            if key in names:
                verdict = "named"
            elif stored.mtime_ms > named_ms - rules.min_age_ms:
                verdict = "young"
            elif _matches(key, rules.protect):
                verdict = "protected"
            elif _matches(key.rpartition("/")[2], rules.never_taken):
                verdict = "never taken"
            else:
                verdict = "unnamed"
                marked_ms = before[key].marked_ms if key in before and before[key].stored == stored else 0
                self.mark[key] = Marked(stored, marked_ms or now_ms)
                new += [] if marked_ms else [key]
                if marked_ms and marked_ms + rules.grace_ms < named_ms:
                    self.due.append(key)
            self.of[verdict].append(key)
        waiting = self.mark.keys() - {*self.due}
        self.counts = {
            **{verdict: self.count(keys) for verdict, keys in self.of.items()},
            "waiting": self.count(waiting),
            "due": self.count(self.due),
            "newly marked": self.count(new),
            "named again": self.count(key for key in self.of["named"] if key in before),
        }

    def check(self) -> set[str]:
        """Return the words of the checks that stop the run."""
        kept, unnamed, listed = self.counts["named"], self.count(self.mark), self.count(self.listed)
        share, then = self.rules.share_max, self.names_then
        failed = {
            "no-consent-possible": not self.names,
            "fewer-names": self.names < 0.8 * then,
            "few-found": kept.objects < self.names / 2,
            "large-share": unnamed.objects >= self.rules.floor_objects
            and (unnamed.objects > share * listed.objects or unnamed.bytes > share * listed.bytes),
        }
        if not self.names:
            failed |= {"fewer-names": False, "few-found": False, "large-share": False}
        return {word for word, is_failed in failed.items() if is_failed} - {*self.rules.consent}

    def let_stand(self) -> None:
        self.model.mark, self.model.names_then = self.mark, self.names

    def sweep(self, now_ms: int) -> None:
        """Delete what is due, and is still what was listed."""
        by_outcome: dict[str, list[str]] = {}
        for key in self.due:
            found = self.model.objects.get(key)
            if abs(now_ms - self.reading_ms) >= READING_MS_MAX:
                outcome = "failed"
            elif found is None:
                outcome = "already gone"
            elif found != self.listed[key]:
                outcome = "changed"
            else:
                outcome = "deleted"
                del self.model.objects[key]
            by_outcome.setdefault(outcome, []).append(key)
            if outcome != "failed":
                self.model.mark.pop(key, None)
        self.outcomes = {outcome: self.count(keys) for outcome, keys in by_outcome.items()}

    def count(self, keys: Iterable[str]) -> ObjectCount:
        sizes = [len(self.listed[key].body) for key in keys]
        return ObjectCount(len(sizes), sum(sizes))


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
