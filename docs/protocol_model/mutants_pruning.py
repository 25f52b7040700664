"""Rule 25 dropped, piece by piece: pruning of a store that refstore does not own."""

from __future__ import annotations

from .pruning import Pruning, is_same_content
from .store import Branch, Steps


class ReadsNamesFirst(Pruning):
    """Rule 25 dropped: names are read before the store is listed."""

    order = "uncommitted commits listing"


class ReadsCommitsFirst(Pruning):
    """Rule 25 dropped: what commits name is read before what is uncommitted."""

    order = "listing commits uncommitted"


class TakesWhatIsYoung(Pruning):
    """Rule 25 dropped: an object may be marked as soon as it is written."""

    least_age = 0


class MarksAndDeletes(Pruning):
    """Rule 25 dropped: a run deletes what it is the first to find unnamed."""

    marks_first = False


class DeletesByOldNames(Pruning):
    """Rule 25 dropped: what was marked goes when the grace period is over, without another reading of names."""

    reads_names_again = False


class MarksByKey(Pruning):
    """Rule 25 dropped: a mark holds for whatever is at its key."""

    compares_marks = False


class DeletesUnseen(Pruning):
    """Rule 25 dropped: nobody looks at an object before it is deleted."""

    looks = False
    deletes_if_unchanged = False


class LooksThenDeletes(Pruning):
    """Rule 25 dropped: a look, and a deletion without a condition, as in a store that has none, or with an ETag that
    the new object has, too.
    """

    deletes_if_unchanged = False


class ReadsTheDifference(Pruning):
    """Rule 25 dropped: of what is staged, only what differs from the head is read."""

    def overlooks(self, record: Branch, path: str, address: str) -> Steps:
        head = yield ("get", ("c", record.head))
        return is_same_content(dict(head.tree).get(path), address)


class IgnoresTheLock(Pruning):
    """Rule 25 dropped: a run does not ask whether another one took over."""

    checks_lock = False


class DeletesByAnOldReading(Pruning):
    """Rule 25 dropped: a run deletes by its reading of names, however long ago that was."""

    bounds_reading = False


class CountsFromTheBegin(Pruning):
    """Rule 25 dropped: the grace period begins with the run that marks, however long it took to read the names."""

    counts_from_begin = True


class MarksWhatWasDeleted(Pruning):
    """Rule 25 dropped: what a run deleted stays in its mark, so a restored object gets no new grace period."""

    drops_marks = False
