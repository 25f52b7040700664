"""Transactions: a branch for the work of one writer, and a lease that says whether the writer is still there."""

from __future__ import annotations

from .background import Background
from .store import DELETED, Closed, Steps


class Transactions(Background):
    def begin_transaction(self, branch: str, source: str) -> Steps:
        """Open the branch of a transaction; the caller writes to it as to any branch."""
        return (yield from self.create_branch(branch, source, self.fresh()))

    def renew(self, branch: str) -> Steps:
        while True:
            record = yield ("open", ("b", branch))
            if record is None or record.lease is None:
                return "gone"
            if (yield ("cas", ("b", branch), record, record._replace(lease=self.fresh()))):
                return "ok"

    renews_first = True

    def finish_transaction(self, branch: str, target: str, commit: str, merged: str) -> Steps:
        """Commit what the transaction has, merge it, and delete its branch, as one operation.

        Rule 24: Transactions end once.

        The record of a transaction's branch has a lease: an id, and the time until which it holds. Its writer renews
        it by `set_if`. **Who merges renews it first**, in the same operation: so the lease outlives the operation, and
        a transaction that was ended is not merged.

        The reaper ends a transaction whose lease ran out longer ago than the longest operation: it closes the branch as
        a deletion does, by `set_if` from the record in which it read the lease. A renewal in between refuses it. What
        was staged goes to the trash, as that of any deleted branch; what was merged is committed, and stays. The
        hidden branches of a purge have such leases, too, which a run renews between its steps and before each merge.

        *Without it* a writer that was paused merges what it was told is gone, and what another writer has done again
        meanwhile is there twice. *Shown by* `EndsAtOnce`, `EndsWhatWasRenewed`, `MergesUnrenewed`.
        """
        if self.renews_first and (yield from self.renew(branch)) != "ok":
            return "gone"
        before = yield ("open", ("b", branch))
        sealing = yield from self.seal(branch)
        if before is None or sealing is None:
            return "gone"
        verdict = yield from self.commit_sealed(branch, commit, *sealing)
        if verdict == "ok":
            verdict = yield from self.graft(target, commit, None, merged)
        elif verdict == "aborted":
            return "gone"
        if verdict in ("ok", "nothing"):
            yield from self.close(branch, before.born)
        return verdict

    waits_for_operations = True
    compares_leases = True

    def end_lease(self, branch: str) -> Steps:
        """End a transaction whose lease has run out. Time is not modelled: it has, where nobody renews it."""
        old = yield ("open", ("b", branch))
        if old is None or old.lease is None:
            return "none"
        if self.waits_for_operations:
            yield ("barrier",)
        record = yield ("open", ("b", branch))
        if record is None or (self.compares_leases and record.lease != old.lease):
            return "kept"
        gone = tuple((token, DELETED) for token in (*record.sealed, record.token))
        return "ended" if (yield ("cas", ("b", branch), record, Closed(record.retired + gone, record.born))) else "kept"
