"""Whether what a task was told is done can be read at the end, looked up apart from the product's reading; and was told
to one only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from refstore.kv.base import Key
from tests.kit.domain import contents_of
from tests.kit.independent_audit import BRANCH, ENTRY, TOMBSTONE, column_of, decoded
from tests.kit.steps import Interned, body_of
from tests.simulation.calls import Promise

Outcomes = Mapping[str, tuple[Hashable, ...]]
Judge = Callable[[Outcomes, Mapping[int, int], Interned], str | None]
"""Returns what is wrong with how the tasks of a plan ended, and with what the stores have then."""


class Promised:
    """Checks the promises of calls that ended well: `kept` under their own paths, `somewhere` under any path.

    `once`: of these tasks, whose first call links one address, one is told at most that it did (rule 10). `accepted`:
    no call of these tasks is refused (rule 8).
    """

    def __init__(
        self,
        repo: str,
        private: Mapping[str, bytes],
        kept: Mapping[str, Sequence[Promise]],
        somewhere: Mapping[str, Sequence[Promise]],
        *,
        once: str = "",
        accepted: str = "",
        nothing_marked: bool = False,
        judge: Judge | None = None,
    ) -> None:
        self._repo = repo
        self._private = private
        self._kept = kept
        self._somewhere = somewhere
        self._once = once
        self._accepted = accepted
        self._nothing_marked = nothing_marked
        self._judge = judge

    def __call__(self, outcomes: Outcomes, store: Mapping[int, int], names: Interned) -> str | None:
        if self._judge is not None and (why := self._judge(outcomes, store, names)):
            return why
        contents, blobs = contents_of(store, names)
        if self._nothing_marked:
            marked = {key.name for key in contents if key.partition == f"{self._repo}/marks"}
            landed = {key.name for key in contents if key.partition == f"{self._repo}/landed"}
            if marked & landed:
                return f"commit {min(marked & landed)} landed and is marked as one that never did"
        linked = [label for label in self._once if outcomes.get(label, ())[:1] == ("ok",)]
        if len(linked) > 1:
            return f"{' and '.join(linked)} were told that they linked one address"
        for label in self._accepted:
            if refusals := [one for one in outcomes.get(label, ()) if one != "ok"]:
                return f"{label} was refused ({refusals[0]}) before its time was over"
        for label, said in outcomes.items():
            if not said or any(one != "ok" for one in said):
                continue
            for promise in self._kept.get(label, ()):
                why = self._broken(contents, blobs, promise)
                if why:
                    return f"{label} was told that it is done, but {why}"
            for promise in self._somewhere.get(label, ()):
                shown = self._shown(contents, promise.branch) or {}
                if promise.body not in {body_of(blobs.get(address, bytes(8))) for address in shown.values()}:
                    return f"{label} was told that it is done, but {promise.body!r} is nowhere on {promise.branch!r}"
        return None

    def _broken(self, contents: Mapping[Key, bytes], blobs: Mapping[str, bytes], promise: Promise) -> str:
        shown = self._shown(contents, promise.branch)
        if shown is None:
            return f"there is no branch {promise.branch!r}"
        if not promise.path:
            return ""
        address = shown.get(promise.path)
        if address is None:
            return f"{promise.path!r} is not on {promise.branch!r}"
        body = body_of(blobs[address]) if address in blobs else None
        return (
            ""
            if promise.body in (None, body)
            else f"{promise.path!r} on {promise.branch!r} is {body!r}, not {promise.body!r}"
        )

    def _shown(self, contents: Mapping[Key, bytes], branch: str) -> dict[str, str] | None:
        """Path -> address, as a reader of the branch sees it."""
        record = decoded(contents.get(Key(f"{self._repo}/branches", branch), b""))
        if record is None or record[0] != BRANCH:
            return None
        shown = self._tree(contents, record[1])
        for token in (*record[3], record[2]):
            for key, value in contents.items():
                if key.partition == f"{self._repo}/staging/{token}":
                    entry = decoded(value) or [0]
                    if entry[0] == ENTRY:
                        shown[key.name] = entry[1]
                    elif entry[0] == TOMBSTONE:
                        shown.pop(key.name, None)
        return shown

    def _tree(self, contents: Mapping[Key, bytes], commit: str) -> dict[str, str]:
        record = decoded(contents[Key(f"{self._repo}/commits", commit)]) or []
        shown: dict[str, str] = {}
        if record[2]:
            for range_id in column_of(self._private[f"_refstore/metaranges/{record[2]}.parquet"], "range"):
                body = self._private[f"_refstore/ranges/{range_id}.parquet"]
                shown.update(zip(column_of(body, "path"), column_of(body, "address"), strict=True))
        return shown
