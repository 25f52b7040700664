"""Flows that decide a token's fate, each in one `cas` of the branch record (rule 3)."""

# ruff: noqa: ARG002  # hooks for losses.py take arguments that are not used here

from __future__ import annotations

from .calls import Do
from .multipart import Multipart
from .staging import ATTEMPTS
from .store import CLOSED, DELETED, NEW, OPEN, PROCESSED, Branch, Closed, Commit, Entry, Steps


class Branching(Multipart):
    register_first = True
    one_token = False
    """Whether every attempt of an operation uses the same new token."""

    def new_token(self, branch: str) -> Steps:
        """A token for one attempt, in the registry before it can be current."""
        token = f"{branch}:{self.me}" if self.one_token else f"{branch}:{self.fresh()}"
        if self.register_first:
            yield ("set", ("t", token), NEW)
        return token

    def seal(self, branch: str) -> Steps:
        """(head, every sealed token), under a new current token; None: no such branch."""
        while True:
            record = yield ("open", ("b", branch))
            if record is None:
                return None
            token = yield from self.new_token(branch)
            sealed = (*record.sealed, record.token)
            if (yield ("cas", ("b", branch), record, record._replace(token=token, sealed=sealed))):
                if not self.register_first:
                    yield ("set", ("t", token), NEW)
                return record.head, sealed

    answers_exactly = True

    def advance(self, branch: str, base: str, sealed: tuple[str, ...], head: str, fate: str) -> Steps:
        """Move the head and retire the sealed tokens in one step. Return whether it landed.

        Rule 3: A token's fate is decided in the branch record.

        Commit, reset and branch deletion each end in one `set_if` on the branch record. The same write moves the tokens
        to `retired`, with their fate. Markers are published from `retired` afterwards, and only then taken off it, by
        whoever comes first: the operation, the next one, or the reaper. A deleted branch keeps a closed record until
        its tokens are published.

        **Each attempt to make a token current uses a new token.** If the `set_if` is refused, a reset is done if the
        token that was current at first is no longer live; a deletion is done if the record is gone, closed, or of
        another incarnation; a commit asks rule 18.

        *Without it* the tokens of a committer that dies between its commit and its marker have no fate, and the
        scrubber takes committed data for left over. A token that two attempts use may have landed unnoticed by the
        first one; it is then sealed and current at once, and what was acknowledged under it is lost.

        *Shown by* `MarkersAfterTheFact`, `TokenAgain`, `DeletesAnyIncarnation`.
        """
        while True:
            record = yield ("open", ("b", branch))
            if record is None or record.head != base or record.sealed[: len(sealed)] != sealed:
                break
            retired = record.retired + tuple((token, fate) for token in sealed)
            if (
                yield (
                    "cas",
                    ("b", branch),
                    record,
                    record._replace(head=head, sealed=record.sealed[len(sealed) :], retired=retired),
                )
            ):
                if fate != DELETED:
                    yield from self.record_landing(branch, record.born, fate, published=False)
                    yield ("set", ("l", fate), True)
                return True
        return fate != DELETED and self.answers_exactly and (yield from self.landed(fate, branch))

    def record_landing(self, branch: str, born: str, commit: str, *, published: bool) -> Steps:
        """Whether the object store has the commit by now; only a model in which the KV loses writes asks (losses.py).
        `published`: by whoever publishes it, who need not be the committer.
        """
        return True
        yield

    def record_deletion(self, branch: str, born: str) -> Steps:
        """Likewise, of a branch."""
        return
        yield

    def commit(self, branch: str, commit: str) -> Steps:
        sealing = yield from self.seal(branch)
        if sealing is None:
            return "404"
        return (yield from self.commit_sealed(branch, commit, *sealing))

    def finish_commit(self, branch: str, commit: str) -> Steps:
        """What is left of a commit that has sealed: for scenarios that begin there."""
        record = yield ("open", ("b", branch))
        return (yield from self.commit_sealed(branch, commit, record.head, record.sealed))

    def commit_sealed(self, branch: str, commit: str, base: str, sealed: tuple[str, ...]) -> Steps:
        before = yield ("get", ("c", base))
        tree = dict(before.tree)
        for token in sealed:
            for key in (yield ("scan", ("e", token))):
                entry = yield ("get", key)
                if isinstance(entry, Entry):
                    tree[key[2]] = entry.address
                elif entry is not None:
                    tree.pop(key[2], None)
        if frozenset(tree.items()) == before.tree:
            return "nothing" if (yield from self.advance(branch, base, sealed, base, DELETED)) else "aborted"
        return (yield from self.write(branch, (base,), tree, before, sealed, commit))

    def write(self, branch: str, parents: tuple, tree: dict, before: Commit, sealed: tuple, commit: str) -> Steps:
        added = frozenset(tree.values()) - {address for _, address in before.tree}
        yield ("set", ("c", commit), Commit(parents, frozenset(tree.items()), added, sealed))
        return "ok" if (yield from self.advance(branch, parents[0], sealed, commit, commit)) else "aborted"

    # ---- merge, revert, cherry-pick

    def merge(self, branch: str, source: str, commit: str) -> Steps:
        record = yield ("open", ("b", source))
        if record is None:
            return "404"
        return (yield from self.graft(branch, record.head, None, commit))

    def cherry_pick(self, branch: str, picked: str, commit: str) -> Steps:
        tree = yield from self.named(picked)
        if isinstance(tree, str):
            return tree
        record = yield ("get", ("c", picked))
        return (
            yield from self.graft(branch, picked, record.parents[0], commit)
        )  # a merge is picked against its first parent

    def revert(self, branch: str, reverted: str, commit: str) -> Steps:
        tree = yield from self.named(reverted)
        if isinstance(tree, str):
            return tree
        record = yield ("get", ("c", reverted))
        return (yield from self.graft(branch, record.parents[0], reverted, commit))

    demands_clean = True

    def graft(self, branch: str, theirs: str, base: str | None, commit: str) -> Steps:
        """Bring what changed from `base` (None: the merge base, and `theirs` becomes a parent) to `theirs` onto a clean
        branch.

        Rule 16: Commits of nothing, and merges.

        A commit that changes nothing retires its sealed tokens as deleted, under the same head.

        Merge, revert and cherry-pick seal as a commit does, and demand that the sealed areas hold no entries. If they
        do, the answer is "dirty": the tokens stay sealed, and their entries stay staged and visible. (So look before
        sealing, too.) They advance by the same `set_if`. What they add is committed already, whether its marker is
        processed or not.

        *Without it* an upload that was acknowledged while the commit or merge ran is lost. *Shown by* `NothingIsLeft`,
        `MergesDirty`.
        """
        if (yield ("get", ("x", theirs))):
            return "410"
        sealing = yield from self.seal(branch)
        if sealing is None:
            return "404"
        head, sealed = sealing
        if self.demands_clean:
            for token in sealed:
                if (yield ("scan", ("e", token))):
                    return "dirty"
        parents = (head,) if base is not None else (head, theirs)
        if base is None:
            base = yield from self.merge_base(head, theirs)
        ours = yield ("get", ("c", head))
        other = yield ("get", ("c", theirs))
        origin = yield ("get", ("c", base))
        tree = three_way(dict(origin.tree), dict(ours.tree), dict(other.tree))
        if tree is None:
            return "conflict"
        if frozenset(tree.items()) == ours.tree:
            return "nothing" if (yield from self.advance(branch, head, sealed, head, DELETED)) else "aborted"
        return (yield from self.write(branch, parents, tree, ours, sealed, commit))

    def merge_base(self, one: str, other: str) -> Steps:
        known = set()
        while one is not None:
            known.add(one)
            record = yield ("get", ("c", one))
            one = record.parents[0] if record.parents else None
        while other not in known:
            record = yield ("get", ("c", other))
            other = record.parents[0]
        return other

    # ---- reset, create, delete

    def reset(self, branch: str) -> Steps:
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        first = record.token
        while True:
            token = yield from self.new_token(branch)
            gone = tuple((token, DELETED) for token in (*record.sealed, record.token))
            if (
                yield (
                    "cas",
                    ("b", branch),
                    record,
                    record._replace(token=token, sealed=(), retired=record.retired + gone),
                )
            ):
                return "ok"
            record = yield ("open", ("b", branch))
            if not self.one_token and (record is None or first not in (record.token, *record.sealed)):
                return "ok"  # what was staged then is not any more: by this very call, the reply lost, or by another's
            if record is None:
                return "404"

    reserves = True

    def create_branch(self, branch: str, source: str, lease: str | None = None) -> Steps:
        """`source`: a branch, or a commit's id. `lease`: of a transaction's branch.

        Rule 19: Creation of branches, deletion of repositories, and names.

        **Creation of a branch** sets an empty closed record, and then the branch over it. Neither can come back.

        **Deletion of a repository** is `set_if(open -> closed)`, and then every branch is closed. Whoever creates a
        branch reads the repository's record before and again after its own, and closes its own branch if it came too
        late. The reaper closes what is still open. The closed record is deleted last: when no branch, marker, registry
        key or reference is left, and it is older than the longest operation.

        **A branch and a tag never share a name.** The empty closed record reserves the name. Behind it, and before the
        branch is written, its creator looks for a tag, and takes the reservation back if there is one. A tag is written
        first; then its creator looks for a branch. If there is an open one, the tag is deleted, before its manifest
        entry. A mere reservation is taken away, so that its creator looks again. A tag may be beside a branch only if
        its creator died between the two steps, or its write landed after it was given up; nobody was told that it was
        created. A ref means the branch then.

        *Without it* a creation that is made again brings a token back that a deletion has ended, a repository that was
        deleted leaves records, or a ref has two meanings.

        *Shown by* `CreatesBranchesAgain`, `ForgetsAtOnce`, `BranchesLookFirst`, `TagsLookFirst`, `LeavesReservations`,
        `KeepsRefusedTags`.
        """
        if (yield ("get", ("repo",))) != OPEN:
            return "404"
        record = yield ("open", ("b", source))
        head = source if record is None else record.head
        tree = yield from self.named(head)
        if isinstance(tree, str):
            return tree
        for _ in range(ATTEMPTS):
            token = yield from self.new_token(branch)
            reserved = Closed((), token) if self.reserves else None
            # first an empty closed record: the write that makes the token current then expects what never comes back,
            # so that it can neither be made again after the branch was deleted, nor land late
            created = not reserved or (yield ("cas", ("b", branch), None, reserved))
            if created and (yield from self.is_tagged(branch)):  # behind it, as who creates a tag takes it away
                yield ("cas", ("b", branch), reserved, None)
                return "409"
            created = created and (yield ("cas", ("b", branch), reserved, Branch(head, token, (), (), token, lease)))
            if not created:
                standing = yield ("get", ("b", branch))
                created = yield from self.was_live(token, standing)
                if not created and isinstance(standing, Branch):
                    return "409"
            if not created:
                yield from self.drain(branch)
                continue
            if not self.register_first:
                yield ("set", ("t", token), NEW)
            if (yield ("get", ("repo",))) != OPEN:
                yield from self.close(branch, token)
                return "404"
            return "ok"
        return "busy"

    def is_tagged(self, name: str) -> Steps:
        return (yield ("get", ("tag", name))) is not None

    def has_branch(self, name: str) -> Steps:
        """Whether a branch has the name; a reservation is taken away: its creator may have looked for a tag before."""
        while True:
            record = yield ("get", ("b", name))
            if record is None or isinstance(record, Branch) or record.retired:
                return isinstance(record, Branch)
            yield ("cas", ("b", name), record, None)

    def was_live(self, token: str, standing: Branch | Closed | None) -> Steps:
        """Whether a token that was never seen to land became current all the same (its reply was lost). In this
        order.
        """
        if isinstance(standing, Branch) and standing.born == token:
            return True
        if standing is not None and any(other == token for other, _ in standing.retired):
            return True
        return (yield ("get", ("md", token))) is not None or (yield ("get", ("t", token))) == PROCESSED

    knows_incarnation = True

    def delete_branch(self, branch: str) -> Steps:
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        yield from self.close(branch, record.born)
        return "ok"

    def close(self, branch: str, born: str) -> Steps:
        """Retire every token of one incarnation under a closed record; if it is gone, it is closed."""
        while True:
            record = yield ("open", ("b", branch))
            if record is None or (self.knows_incarnation and record.born != born):
                return
            gone = tuple((token, DELETED) for token in (*record.sealed, record.token))
            if (yield ("cas", ("b", branch), record, Closed(record.retired + gone, record.born))):
                return

    def drain(self, branch: str) -> Steps:
        """Publish what is retired, then take it off the record; a closed record goes."""
        record = yield ("get", ("b", branch))
        if record is None or not (record.retired or isinstance(record, Closed)):
            return
        taken: dict[str, tuple[str, ...]] = {}
        for token, fate in record.retired:
            taken[fate] = (*taken.get(fate, ()), token)
        for token in taken.pop(DELETED, ()):
            yield ("set", ("md", token), True)
        for commit, tokens in taken.items():
            if not (yield from self.record_landing(branch, record.born, commit, published=True)):
                return
            yield ("set", ("l", commit), True)
            yield ("set", ("mc", commit), tokens)
        if isinstance(record, Closed):
            yield from self.record_deletion(branch, record.born)
        yield ("cas", ("b", branch), record, None if isinstance(record, Closed) else record._replace(retired=()))

    # ---- the repository

    def delete_repository(self) -> Steps:
        yield ("cas", ("repo",), OPEN, CLOSED)
        names = yield ("scan", ("b",))
        return Do(("delete_branch", name[1]) for name in names)


def three_way(base: dict[str, str], ours: dict[str, str], theirs: dict[str, str]) -> dict[str, str] | None:
    """The merged tree, or None where both sides changed a path, and not alike."""
    tree = dict(ours)
    for path in {*base, *ours, *theirs}:
        was, mine, other = base.get(path), ours.get(path), theirs.get(path)
        if other in (was, mine):
            continue
        if mine != was:
            return None
        if other is None:
            tree.pop(path, None)
        else:
            tree[path] = other
    return tree
