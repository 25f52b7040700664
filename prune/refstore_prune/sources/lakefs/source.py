"""Names of a lakeFS repository, in the order that is safe: first what is uncommitted, then what is committed. What is
committed in between is in one of both.

Two of lakeFS's own calls write down what a collector needs, as files in the repository's namespace: what is uncommitted
on every branch, and which commits its rules keep. Without rules every commit is kept. No call lists commits that no
branch leads to any more, so then every range in the namespace is read, whichever commit it belongs to.

lakeFS writes no file for a part of the branches in which nothing is staged. It may also write none although something
is: a branch that is deleted while it makes the list sets its count of what it has written to 0 (#9792). So where there
is no file, each of these branches is asked. What was staged when the list was made is still staged then, or was
committed and is read with the commits, or was given up.

To the commits that lakeFS's rules keep, those are added that a branch or a tag names, and those that refstore's own
rules keep. No commit is ever taken from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from refstore.core.clock import Clock, SystemClock
from refstore.core.redaction import redact_url
from refstore.errors import Corrupt, Invalid, ObjectNotFound, Unavailable
from refstore.objects import open_objects
from refstore.objects.store_urls import parse_store_url
from refstore.retention.rules import Rules
from refstore.versioning.commits.workers import Workers
from refstore_prune.sources.base import MetadataPlace, NamePart, NameSource, SourceFacts, SourceOptions
from refstore_prune.sources.lakefs import kept_commits
from refstore_prune.sources.lakefs.client import LakefsClient, UncommittedPage
from refstore_prune.sources.lakefs.committed import FOLDER, RangeRef, RangeTask, range_key, read_metarange
from refstore_prune.sources.lakefs.credentials import read_login
from refstore_prune.sources.lakefs.name_tasks import LeftOverTask, PlacedNames, UncommittedTask
from refstore_prune.sources.lakefs.namespace_place import find_place, folder_url
from refstore_prune.sources.lakefs.sstable import TableFile

LINK_HOURS: Final = 24
"""How long lakeFS lets an address be linked after it was given out."""
TASK_NAMES: Final = 1_000_000
"""About how many names a task reads."""
TASK_RANGES: Final = 256
_KNOWN_AS: Final = "known_as"
_LINK_HOURS: Final = "longest_link_hours"
READINGS_MAX: Final = 3
"""How often what is uncommitted is read while lakeFS overlooks some of it."""
_RETENTION: Final = f"{FOLDER}retention/gc/"
_KIND: Final = FOLDER.rstrip("/")
_THREADS: Final = 8
"""How many metaranges are read at once, at a store across a network."""
NOT_SEEN: Final = (
    "Addresses that `lakectl fs stage` names for the first time while the run goes on.",
    "What is staged and lies outside of the repository's namespace, in that of another one that is pruned, too.",
    "What other repositories name by full addresses (imports, `lakectl fs stage`), unless this run reads them, too.",
    "Commits that the rules let expire and that a branch, a revert or a cherry-pick brings back while the run goes on.",
)


def open_lakefs(repository: str, options: SourceOptions) -> LakefsSource:
    """Open the source `lakefs:REPOSITORY`. Raises Invalid, InvalidRules."""
    if options.column:
        raise Invalid("lakefs: has no columns; leave --column out")
    unknown = options.properties.keys() - {_KNOWN_AS, _LINK_HOURS}
    if unknown:
        raise Invalid(f"{min(unknown)!r} is no property of lakefs:; use {_KNOWN_AS} or {_LINK_HOURS}")
    hours = options.properties.get(_LINK_HOURS, str(LINK_HOURS))
    if not hours.isdecimal() or not 1 <= int(hours) <= 10_000:
        raise Invalid(f"{_LINK_HOURS} is {hours!r}; give a number of hours, such as 48")
    client = LakefsClient(read_login(options.endpoint), repository)
    rules = kept_commits.read_extra_rules(options.rules)
    return LakefsSource(
        repository, client, rules, known_as=options.properties.get(_KNOWN_AS, ""), link_hours=int(hours)
    )


class LakefsSource(NameSource):
    never_taken = ("dummy",)  # by which older versions mark a namespace as taken

    def __init__(
        self,
        repository: str,
        client: LakefsClient,
        rules: Rules | None = None,
        *,
        known_as: str = "",
        link_hours: int = LINK_HOURS,
        clock: Clock | None = None,
    ) -> None:
        self.text = f"lakefs:{repository}"
        self._repository = repository
        self._client = client
        self._rules = rules
        self._known_as = known_as
        self._clock = clock or SystemClock()
        self._began_ms = 0
        self._read: dict[str, int] = {}
        self._not_seen: list[str] = [*NOT_SEEN]
        self._others: list[MetadataPlace] = []
        self.min_age = timedelta(hours=max(LINK_HOURS, link_hours))

    def check(self, store_url: str) -> None:
        """Raise Invalid if the repository does not lie in the store; NotFound, Unavailable, Corrupt as the client."""
        record = self._client.repository()
        self._store = open_objects(store_url, read_only=True)
        self._place = find_place(store_url, record.storage_namespace, self._known_as, self._has_objects)
        prefix = self._place.prefix
        self.folders = (prefix,)
        self.base_url = _url_below(store_url, prefix)
        self.never_taken_folders = (re.escape(f"{prefix}{FOLDER}"),)
        self.min_age = max(self.min_age, timedelta(seconds=self._client.link_seconds()))
        self._client.has_rules()  # so that a missing permission is told before the store is listed
        self._find_others()

    def metadata_elsewhere(self) -> list[MetadataPlace]:
        return self._others

    def reads_metadata(self, place: MetadataPlace, store_url: str) -> bool:
        del store_url
        return place.kind == _KIND and place.folder.strip("/") == self._place.prefix.strip("/")

    def parts(self) -> Iterator[NamePart]:
        self._began_ms = self._clock.now_ms()
        yield from self._read_uncommitted()
        yield from self._read_committed()

    def facts(self) -> SourceFacts:
        return SourceFacts(
            source=self.text, began_ms=self._began_ms, read=dict(sorted(self._read.items())), not_seen=self._not_seen
        )

    # ---- where it lies

    def _has_objects(self, prefix: str) -> bool:
        return next(self._store.list(prefix), None) is not None

    def _find_others(self) -> None:
        """Find the other repositories of the server that lie in the store."""
        try:
            records = list(self._client.repositories())
        except Invalid:
            self._not_seen.append("Whether other repositories lie in the store: the key may not list repositories.")
            return
        for record in records:
            if record.id == self._repository:
                continue
            try:
                other = folder_url(record.storage_namespace)
            except Invalid:  # a place of another form than ours is not in this store
                continue
            if other == folder_url(self._place.namespace):
                raise Invalid(
                    f"repositories {self._repository!r} and {record.id!r} have one namespace, "
                    f"{record.storage_namespace}: what only the other one names would go; give one of them up first"
                )
            if other.startswith(self._place.known_as):
                below = other.removeprefix(self._place.known_as)
                self._others.append(MetadataPlace(_KIND, below.rstrip("/")))
            elif self._place.known_as.startswith(other):
                raise Invalid(
                    f"{self._store.url} lies in the namespace of repository {record.id!r}, whose names cannot be read "
                    "so; prune a store that holds that namespace, too, with both repositories as sources"
                )

    # ---- what is uncommitted

    def _read_uncommitted(self) -> Iterator[NamePart]:
        self._read["uncommitted files"] = 0
        branch: str | None = None
        for _ in range(READINGS_MAX):
            pages = list(self._client.prepare_uncommitted())
            yield from self._uncommitted_files(pages)
            branch = self._find_overlooked(pages)
            if branch is None:
                return
        raise Unavailable(
            f"lakeFS wrote down {READINGS_MAX} times that nothing is uncommitted, although something is on branch "
            f"{branch!r}; run again while no branches are deleted. If all of it lies outside of the repository's "
            "namespace, commit or reset it first"
        )

    def _find_overlooked(self, pages: Sequence[UncommittedPage]) -> str | None:
        """Return a branch on which objects are staged, and of which a page without a file should tell."""
        ends = [page.next_branch for page in pages]
        parts = [
            (start or "", end)
            for start, end, page in zip(["", *ends], ends, pages, strict=False)
            if not page.gc_uncommitted_location
        ]
        for branch in self._client.branches() if parts else ():
            is_in_part = any(start <= branch.id and (end is None or branch.id < end) for start, end in parts)
            if is_in_part and self._client.has_staged(branch.id):
                return branch.id
        return None

    def _uncommitted_files(self, pages: Sequence[UncommittedPage]) -> Iterator[NamePart]:
        written = [page for page in pages if page.gc_uncommitted_location]
        name = f"uncommitted/{pages[0].run_id}/uncommitted/"
        for page in written:
            self._find_file(page.gc_uncommitted_location, name)
        folder = f"{self._place.prefix}{_RETENTION}{name}"
        keys = [info.key for info in self._store.list(folder)]
        if len(keys) < len(written):
            raise Corrupt(
                f"lakeFS says that it wrote {len(written)} files to {folder}, and {len(keys)} are there; run "
                "again, with a server of 2024 or later"
            )
        self._read["uncommitted files"] += len(keys)
        for key in keys:
            yield PlacedNames(UncommittedTask(self._store.url, key), self._place)

    def _find_file(self, location: str, name: str) -> str:
        """Return the key of what lakeFS has written. Raises Corrupt: it is not where it belongs."""
        expected = f"{_RETENTION}{name}"
        if location.rstrip("/") != f"{self._place.namespace}{expected}".rstrip("/"):
            raise Corrupt(
                f"lakeFS says that it wrote {redact_url(location)!r}, which should be {expected} in "
                f"{self._place.namespace!r}; a server that is set to another committed.block_storage_prefix is not "
                "supported"
            )
        return f"{self._place.prefix}{expected}"

    # ---- what is committed

    def _read_committed(self) -> Iterator[NamePart]:
        heads = {branch.id: branch.commit_id for branch in self._client.branches()}
        tags = {tag.id: tag.commit_id for tag in self._client.tags()}
        keeps_all = not self._client.has_rules()
        kept = {} if keeps_all else self._read_commits_of_rules(heads)
        named = {*heads.values(), *tags.values()}
        held: set[str] = set()
        if keeps_all or self._rules is not None:
            pinned = () if self._rules is None else self._rules.pins.commits
            history = kept_commits.read_history(self._client, {**dict.fromkeys(named), **dict.fromkeys(pinned)})
            more = history.keys()
            if not keeps_all and self._rules is not None:
                more = kept_commits.keep_more(self._rules, history, heads, tags, self._clock.now_ms())
            kept.update((commit, history[commit].meta_range_id) for commit in more)
            held = {commit.meta_range_id for commit in history.values()} - {""}
        for commit in named - kept.keys():
            kept[commit] = self._client.commit(commit).meta_range_id
        self._check_empty(kept)
        self._read |= {"commits": len(kept), "branches": len(heads), "tags": len(tags)}
        metaranges = set(kept.values()) - {""}
        ranges = {ref.id: ref for refs in self._read_metaranges(metaranges) for ref in refs}
        if self._rules is not None and self._rules.legal_holds:
            prefixes = [hold.prefix.encode() for hold in self._rules.legal_holds]
            for refs in self._read_metaranges(held - metaranges):
                ranges.update((ref.id, ref) for ref in refs if kept_commits.overlaps(ref, prefixes))
        self._read |= {"metaranges": len(metaranges), "ranges": len(ranges)}
        if keeps_all:
            yield from self._left_over({*metaranges, *ranges})
        yield from self._range_tasks(ranges)

    def _read_commits_of_rules(self, heads: Mapping[str, str]) -> dict[str, str]:
        """Return the commits that lakeFS's rules keep. Raises Corrupt: the list lacks the head of a branch."""
        prepared = self._client.prepare_commits()
        key = self._find_file(prepared.gc_commits_location, f"commits/run_id={prepared.run_id}/commits.csv")
        try:
            kept = kept_commits.parse_commits(self._store.read(key), key)
        except ObjectNotFound as error:
            raise Corrupt(f"lakeFS says that it wrote {key}, and it is not there; run again") from error
        for branch, head in heads.items():
            # a head that was moved since may be gone from the list; one that is there still may not
            if head not in kept and self._client.branch_head(branch) == head:
                raise Corrupt(f"{key} lacks commit {head}, the head of branch {branch!r}; it is cut off: run again")
        self._read["commits of lakeFS's rules"] = len(kept)
        return kept

    def _check_empty(self, kept: Mapping[str, str]) -> None:
        """Raise Corrupt if a commit names no metarange. Only the first commit of a repository has none."""
        for commit_id in [commit for commit, metarange in kept.items() if not metarange]:
            commit = self._client.commit(commit_id)
            if commit.parents or commit.meta_range_id:
                raise Corrupt(f"commit {commit_id} of {self._repository} is said to name nothing; run again")

    def _read_metaranges(self, metaranges: Iterable[str]) -> Iterator[list[RangeRef]]:
        """Yield the ranges of each. Raises Corrupt, also for one that is not there."""

        def read(metarange: str) -> list[RangeRef]:
            try:
                return read_metarange(TableFile.from_store(self._store, range_key(self._place.prefix, metarange)))
            except ObjectNotFound as error:
                raise Corrupt(f"{error}; a commit names this metarange: put it back from a copy") from error

        with Workers(_THREADS if self._store.is_remote else 1) as workers:
            yield from workers.map_ahead(read, sorted(metaranges))

    def _left_over(self, known: set[str]) -> Iterator[NamePart]:
        """Yield tasks for ranges to which no branch or tag leads: of branches that are gone, of commits under way."""
        folder = f"{self._place.prefix}{FOLDER}"
        names = [info.key.removeprefix(folder) for info in self._store.list(folder)]
        left_over = [name for name in names if kept_commits.ID.fullmatch(name) and name not in known]
        self._read["files that no branch leads to"] = len(left_over)
        for start in range(0, len(left_over), TASK_RANGES):
            task = LeftOverTask(self._store.url, self._place.prefix, tuple(left_over[start : start + TASK_RANGES]))
            yield PlacedNames(task, self._place)

    def _range_tasks(self, ranges: Mapping[str, RangeRef]) -> Iterator[NamePart]:
        group: list[RangeRef] = []
        for number, (_, ref) in enumerate(sorted(ranges.items()), 1):
            group.append(ref)
            if number == len(ranges) or len(group) == TASK_RANGES or sum(each.count for each in group) >= TASK_NAMES:
                yield PlacedNames(RangeTask(self._store.url, self._place.prefix, tuple(group)), self._place)
                group = []


def _url_below(store_url: str, prefix: str) -> str:
    parsed = parse_store_url(store_url)
    return parsed._replace(path=f"{parsed.path.rstrip('/')}/{prefix}".rstrip("/") or parsed.path).text()
