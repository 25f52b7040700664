"""What must hold: S in every state, L once everything has ended and reaper, scrubber and gc have run to a fixpoint.

S  no live entry (current or sealed token of an existing branch) and no reachable commit names a blob that is gone; no
   commit is marked that landed and has not expired
R  a live entry with a reference has it on the list, or its address is committed; one without is committed; a live token
   is registered, unprocessed, and lives once (what S rests on; not demanded of the seed's protocol or of mutants)
L  every blob left is named by a live entry or a commit that landed, or held by a sealed token, or issued
K  nothing else is left either: no entry, reference, marker, hint or registry key of a token that is over
C  callers were told the truth: a commit landed if and only if its caller was told so; an address was linked once; of
   moves of one path that nobody brings back, one was told ok, and the copies of others went; of
   placements that may only go where nothing is, no two were told ok of one path without something between that takes
   it away; of those that may only take the place of one entry, no two; no tag stands beside a branch of its name,
   but where its creator died; while the time of an address is not over, its link or restore is not refused
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .locations import home, purged_by
from .store import (
    CLOSED,
    DEAD,
    DEAD_PARTS,
    EMPTY,
    ENDING,
    GONE,
    NEW,
    Branch,
    Closed,
    Entry,
    Location,
    Ref,
    Store,
    branch_of,
    is_issued,
    is_uploading,
    listed,
    upload_of,
)

IF_ABSENT = {"upload_if_absent", "uploading_if_absent", "link_if_absent", "linking_if_absent", "complete_if_absent"}
"""Before and after the early look; the next two likewise."""
IF_MATCH = {"upload_if_match", "uploading_if_match", "link_if_match", "linking_if_match"}
IF_MATCH_DELETED = {"delete_if_match", "deleting_if_match"}
TAKE_AWAY = {"delete", "reset", "reset_paths", "move", "delete_branch", "delete_if_match", "deleting_if_match"}
BRING_BACK = {"reset", "reset_paths", "restore", "copy", "move", "delete_branch"}
"""What may show an entry again that was replaced."""

Results = dict[str, tuple[tuple[tuple, str], ...]]
"""By label: each call that ended, and what it answered."""


def branches(store: Store) -> Iterator[tuple[str, Branch]]:
    for key, value in store.kv.items():
        if key[0] == "b" and isinstance(value, Branch):
            yield key[1], value


def live_tokens(store: Store) -> list[str]:
    return [token for _, record in branches(store) for token in (record.token, *record.sealed)]


def live_entries(store: Store) -> Iterator[tuple[tuple, Entry]]:
    tokens = set(live_tokens(store))
    for key, value in store.kv.items():
        if key[0] == "e" and key[1] in tokens and isinstance(value, Entry):
            yield key, value


def reachable_commits(store: Store) -> set[str]:
    """Heads and tags, marked or not, and their unmarked ancestors."""
    heads = {record.head for _, record in branches(store)} | {
        value.commit for key, value in store.kv.items() if key[0] == "tag"
    }
    found: set[str] = set()
    todo = list(heads)
    while todo:
        commit = todo.pop()
        if commit in found or (commit not in heads and store.kv.get(("x", commit))):
            continue
        if ("c", commit) not in store.kv:
            continue  # the KV lost its record: what it named stands in its manifest entry
        found.add(commit)
        todo += store.kv[("c", commit)].parents
    return found


def landed_addresses(store: Store, *, unmarked: bool = False) -> set[str]:
    found: set[str] = set()
    for key in store.kv:
        if key[0] == "~landed" and not (unmarked and store.kv.get(("x", key[1]))):
            found |= {address for _, address in store.kv[("c", key[1])].tree}
    return found


def named(store: Store) -> set[str]:
    """Identities that a live entry or a reachable commit names."""
    identities = {entry.address for _, entry in live_entries(store)}
    for commit in reachable_commits(store):
        identities |= {address for _, address in store.kv[("c", commit)].tree}
    return identities


def there_is(store: Store) -> set[str]:
    """Identities whose content is there, where the KV or, if the KV lost that, the object store says."""
    found = set(store.blobs | store.kv.get(("~excused",), frozenset()))
    found |= {key[1] for key in store.kv if key[0] == "o"}
    moved = {key[1]: value.current for key, value in store.kv.items() if key[0] == "loc"}
    told = {key[1]: value.current for key, value in store.kv.items() if key[0] == "~l"}
    for identity in {*moved, *told}:
        if {moved.get(identity, identity), told.get(identity)} & store.blobs:
            found.add(identity)
        else:
            found.discard(identity)
    return found


def safe(store: Store) -> str | None:
    there = there_is(store)
    for key, entry in live_entries(store):
        if entry.address not in there:
            return f"UNSAFE: {entry.address} is gone but live at {key}"
    for commit in reachable_commits(store):
        for path, address in store.kv[("c", commit)].tree:
            if address not in there:
                return f"UNSAFE: {address} is gone but in commit {commit} at {path}"
    for key, value in store.kv.items():
        if key[0] in ("~m", "~a") and not store.kv.get(("x", key[1])):
            for path, address in value.record.tree:
                if address not in there:
                    return f"UNSAFE: {address} is gone but in the acknowledged commit {key[1]} at {path}"
        if key[0] in ("~p", "~pa") and key[1] not in there and ("~freed", *key[1:]) not in store.kv:
            return f"UNSAFE: {key[1]} is gone but an acknowledged call placed it at {value.path}"
        if key[0] == "~t" and ("~untagged", *key[1:]) not in store.kv and ("c", key[2]) in store.kv:
            for path, address in store.kv[("c", key[2])].tree:
                if address not in there:
                    return f"UNSAFE: {address} is gone but under the acknowledged tag {key[1]} at {path}"
    return None


def sound(store: Store) -> str | None:
    committed = landed_addresses(store)
    for key, entry in live_entries(store):
        if entry.address in committed:
            continue
        held = store.kv.get(("r", entry.address))
        if entry.id is None or not listed(held) or Ref(key[1], key[2], entry.id) not in held[1]:
            return f"UNSOUND: {key} = {entry} has no reference: {held}"
    seen: set[str] = set()
    for name, record in branches(store):
        for token in (record.token, *record.sealed, *(token for token, _ in record.retired)):
            if token in seen:
                return f"UNSOUND: token {token} lives twice, on {name}"
            seen.add(token)
    for token in live_tokens(store):
        if store.kv.get(("t", token)) != NEW or ("md", token) in store.kv:
            return f"UNSOUND: token {token} is live and {store.kv.get(('t', token))}"
    return None


def leaked(store: Store, leaves: Iterable[str] = ()) -> str | None:
    """`leaves`: addresses whose blob may be left, with no key: the offline job's."""
    live = {entry.address for _, entry in live_entries(store)} | landed_addresses(store, unmarked=True)
    for commit in reachable_commits(store):
        live |= {address for _, address in store.kv[("c", commit)].tree}
    live |= {store.kv[("loc", identity)].current for identity in live if ("loc", identity) in store.kv}
    live -= {key[1] for key, value in store.kv.items() if key[0] == "loc" and value.current != key[1]}
    tokens = set(live_tokens(store))
    identities = {value.current: key[1] for key, value in store.kv.items() if key[0] == "loc"}
    for address in sorted(store.blobs - live):
        upload = upload_of(address)
        if upload != address:
            if is_uploading(store.kv.get(("r", upload))):
                continue
            if address in leaves and is_issued(store.kv.get(("r", address))):
                continue  # written, and not recorded: it expires
            return f"LEAK: {address} is left: {store.kv.get(('r', upload))}"
        identity = identities.get(address, address)
        held = store.kv.get(("r", identity))
        if (
            is_issued(held)
            or (held is None and address in leaves)
            or (listed(held) and any(ref.token in tokens and not is_unnamed(store, identity, ref) for ref in held[1]))
        ):
            continue
        return f"LEAK: {address} is left: {held}"
    return None


def is_unnamed(store: Store, address: str, ref: Ref) -> bool:
    """Whether the reference's token is current, and its entry does not name the address."""
    record = store.kv.get(("b", branch_of(ref.token)))
    entry = store.kv.get(("e", ref.token, ref.path))
    return (
        isinstance(record, Branch)
        and record.token == ref.token
        and not (isinstance(entry, Entry) and entry.address == address)
    )


def marked_wrongly(store: Store, expired: Iterable[str]) -> str | None:
    for key in store.kv:
        if key[0] == "x" and key[1] not in expired and ("~landed", key[1]) in store.kv:
            return f"UNSAFE: {key[1]} landed and has not expired, but is marked"
    return None


def littered(store: Store) -> str | None:
    tokens = set(live_tokens(store))
    for key, value in store.kv.items():
        kind = key[0]
        if (
            kind in ("md", "mc", "gc", "pin")
            or isinstance(value, Closed)
            or (kind in ("e", "t") and key[1] not in tokens)
            or value in (EMPTY, DEAD, DEAD_PARTS)
            or (kind == "r" and listed(value) and any(ref.token not in tokens for ref in value[1]))
            or (kind == "r" and listed(value) and any(is_unnamed(store, key[1], ref) for ref in value[1]))
            or (kind == "d" and not is_issued(store.kv.get(("r", key[1]))))
            or (kind in ("u", "p") and not is_uploading(store.kv.get(("r", key[1]))))
            or (isinstance(value, Location) and (value.current not in store.blobs or value.intent or value.left))
            or (key == ("repo",) and value == CLOSED)
            or (kind == "r" and is_issued(value) and ("d", key[1]) not in store.kv)
        ):
            return f"LITTER: {key} = {value}"
        if kind in ("b", "t", "r", "e") and ("repo",) not in store.kv:
            return f"LITTER: the repository is forgotten, but {key} = {value}"
    return None


def truthful(
    results: Results, start: Store, store: Store, keeps: Iterable[str], somewhere: Iterable[str]
) -> str | None:
    """`start` and the settled `store`. `keeps`, `somewhere`: labels whose acknowledged writes nobody in the scenario
    may take away.
    """
    linked: dict[str, str] = {}
    for label, calls in results.items():
        for (name, *args), verdict in calls:
            if name in ("commit", "finish_commit", "merge", "cherry_pick", "revert", "finish_transaction"):
                landed = ("~landed", args[-1]) in store.kv
                if landed != (verdict == "ok"):
                    return (
                        f"LIE: {label} was told {verdict} of {args[-1]}, which {'landed' if landed else 'never landed'}"
                    )
            if verdict in ("lost", "stale") and name in ("read", "read_purged"):
                return f"LIE: {label} was told {verdict} of {name}{tuple(args)}"
            if label in keeps and name == "purge" and verdict == "ok":
                for identity in args[1:]:
                    location = store.kv.get(("loc", identity))
                    if location is None or not (location.current == GONE or purged_by(location.current, args[0])):
                        return f"LIE: {label} was told ok of {name}{tuple(args)}, but {identity} has its rows"
            if label in keeps and name == "purge_all" and verdict == "ok":
                for identity in sorted(named(store) & start.blobs):
                    if not purged_by(store.kv.get(("loc", identity), home(identity)).current, args[0]):
                        return f"LIE: {label} was told ok of {name}{tuple(args)}, but {identity} has its rows"
            if name in ("link", "link_copy") and verdict == "ok" and linked.setdefault(args[2], label) != label:
                return f"LIE: {args[2]} was linked by {linked[args[2]]} and by {label}"
            if (
                name == "complete_upload"
                and verdict == "ok"
                and store.kv.get(("~joined", args[2])) != numbers_of(args[3])
            ):
                return f"LIE: {label} was told ok of {name}{tuple(args)}, but other parts were joined"
            if (
                label in keeps
                and name == "complete_upload"
                and verdict not in ("ok", "busy")
                and look(store, args[0], args[1]) == args[2]
            ):
                return f"LIE: {label} was told {verdict} of {name}{tuple(args)}, but {args[1]} is there"
            if label in keeps and name == "complete_upload" and verdict == "torn":
                return f"LIE: {label} was told ok of the parts of {args[2]}, and they were not there"
            if label in keeps and name == "copy" and verdict == "404" and look(store, args[0], args[1]) is not None:
                return f"LIE: {label} was told {verdict} of {name}{tuple(args)}, but {args[1]} is there"
            if (
                label in keeps and name in IF_ABSENT and verdict in ("exists", "busy")
            ):  # "conflict" is not a word on who was first
                path, address = placed_at(args)
                found = look(store, args[0], path)
                own = (
                    name == "uploading_if_absent" and (found or "").rstrip("'") == address
                )  # an address may be linked by another call
                if own or (verdict == "exists" and found is None):
                    return f"LIE: {label} was told {verdict} of {name}{tuple(args)}, but {path} is {found}"
            if label in keeps and name in IF_MATCH and verdict in ("changed", "busy"):
                path, address = placed_at(args)
                found = look(store, args[0], path)
                own = name == "uploading_if_match" and (found or "").rstrip("'") == address
                if own or (verdict == "changed" and found == expected_by(args)):
                    return f"LIE: {label} was told {verdict} of {name}{tuple(args)}, but {path} is {found}"
            if (
                label in keeps
                and name in IF_MATCH_DELETED
                and verdict in ("ok", "changed")
                and look(store, args[0], args[1]) == expected_by(args)
            ):
                return f"LIE: {label} was told {verdict} of {name}{tuple(args)}, but {args[1]} is {expected_by(args)}"
            if label in keeps and name == "create_branch" and verdict == "404" and there(start, store, args[1]):
                return f"LIE: {label} was told {verdict} of {name}{tuple(args)}, but {args[1]} is there"
            if label in keeps and verdict == "ok":
                why = kept(store, name, args)
                if why:
                    return f"LIE: {label} was told ok of {name}{tuple(args)}, but {why}"
            if label in somewhere and verdict == "ok" and name == "upload":
                for _, address in args[1:]:
                    if not any((look(store, args[0], path) or "").rstrip("'") == address for path in ("p", "q")):
                        return f"LIE: {label} was told ok of {address}, but it is nowhere"
            if (
                label in keeps
                and name == "move"
                and verdict == "404"
                and moved_to(start, args) != moved_to(store, args)
            ):
                return (
                    f"LIE: {label} was told {verdict} of {name}{tuple(args)}, but {args[2]} is {moved_to(store, args)}"
                )
            if (
                label in somewhere
                and name == "move"
                and not any(look(store, branch, path) for branch, _ in branches(store) for path in ("p", "q", "r"))
            ):
                return f"LIE: {label} was told {verdict} of {name}{tuple(args)}, and the object is nowhere"
    return moved_once(results, keeps)


def ended_once(results: Results) -> str | None:
    """No transaction is ended for its writer, and merged by its writer."""
    ended = {args[0] for calls in results.values() for (name, *args), verdict in calls if (name, verdict) == ENDED}
    for label, calls in results.items():
        for (name, *args), verdict in calls:
            if name == "finish_transaction" and verdict == "ok" and args[0] in ended:
                return f"LIE: {label} was told ok of {name}{tuple(args)}, and the reaper ended {args[0]}"
    return None


ENDED = ("end_lease", "ended")


def moved_to(store: Store, args: list) -> str | None:
    """What a reader finds where a move was to go."""
    return look(store, args[3] if len(args) > 3 else args[0], args[2])


def moved_once(results: Results, keeps: Iterable[str]) -> str | None:
    won: dict[tuple[str, str], str] = {}
    for label in keeps:
        for (name, *args), verdict in results.get(label, ()):
            if name == "move" and verdict == "ok" and won.setdefault((args[0], args[1]), label) != label:
                return f"LIE: {won[args[0], args[1]]} and {label} were both told ok of a move of {args[1]}"
    return None


def won_once(results: Results, takers: int) -> str | None:
    """`takers`: how many calls of the scenario may have taken a path away, whether they ended or not."""
    won: dict[tuple[str, str], list[str]] = {}
    for label, calls in results.items():
        for (name, *args), verdict in calls:
            if name in IF_ABSENT and verdict == "ok":
                won.setdefault((args[0], placed_at(args)[0]), []).append(label)
    for place, labels in won.items():
        if len(labels) > 1 + takers:
            return f"LIE: {' and '.join(labels)} were all told ok of {place}, where nothing was to be"
    return None


def replaced_once(results: Results, bringers: int) -> str | None:
    """`bringers`: how many calls of the scenario may have shown an entry again, whether they ended or not."""
    won: dict[tuple[str, str, str], list[str]] = {}
    for label, calls in results.items():
        for (name, *args), verdict in calls:
            if name in IF_MATCH | IF_MATCH_DELETED and verdict == "ok":
                path = args[1] if name in IF_MATCH_DELETED else placed_at(args)[0]
                won.setdefault((args[0], path, expected_by(args)), []).append(label)
    for place, labels in won.items():
        if len(labels) > 1 + bringers:
            return f"LIE: {' and '.join(labels)} were all told ok of {place}, of which one was to take the place"
    return None


def expected_by(args: list) -> str:
    """The address whose place a call was to take: named by its caller, or read before."""
    return args[-1] if isinstance(args[-1], str) else args[-1].address


def refused_early(results: Results, store: Store) -> str | None:
    """Looked at in every state of a scenario of times, where nobody else takes the address."""
    if store.kv[("~clock",)] == ENDING:
        for label, calls in results.items():
            for (name, *args), verdict in calls:
                if name in ("link", "link_copy", "complete_upload", "restore") and verdict != "ok":
                    return f"LIE: {label} was told {verdict} of {name}{tuple(args)} before its time was over"
    return None


def shares_a_name(results: Results, taggers: int, store: Store) -> str | None:
    """`taggers`: how many calls of the scenario create a tag, whether they ended or not."""
    told = [verdict for calls in results.values() for (name, *_), verdict in calls if name == "create_tag"]
    for name, _ in branches(store):
        if ("tag", name) in store.kv and ("ok" in told or len(told) == taggers):
            return f"LIE: {name} is a branch and a tag, whose creator was told {' and '.join(told)}"
    return None


def numbers_of(numbers: str | tuple[str, ...]) -> tuple[str, ...]:
    """The numbers of a scenario's parts."""
    return (numbers,) if isinstance(numbers, str) else numbers


def placed_at(args: list) -> tuple[str, str]:
    """Path and address of a placement that may only go where nothing is."""
    return args[1] if isinstance(args[1], tuple) else (args[1], args[2])


def there(start: Store, store: Store, ref: str) -> bool:
    """Whether a commit had landed from the start, or a branch was there at the start and is at the end."""
    return ("~landed", ref) in start.kv or (("b", ref) in start.kv and ("b", ref) in store.kv)


def kept(store: Store, name: str, args: list) -> str | None:
    if name == "create_branch":
        return None if isinstance(store.kv.get(("b", args[0])), Branch) else "the branch is not there"
    if name in IF_ABSENT | IF_MATCH:
        branch, wanted = args[0], dict([placed_at(args)])
    elif name in ("upload", "finish_upload"):
        wanted = dict(args[1:])
        branch = args[0]
    elif name in ("link", "complete_upload", "restore"):
        branch, wanted = args[0], {args[1]: args[2]}
    elif name == "link_copy":
        branch, wanted = args[0], {args[1]: args[3]}
    elif name in ("copy_from_commit", "copy"):
        return None if look(store, args[2], args[3]) is not None else f"{args[3]} is not there"
    elif name == "move":
        found = moved_to(store, args)
        if found is None:
            return f"{args[2]} is not there"
        return f"{args[1]} is still there" if look(store, args[0], args[1]) == found else None
    else:
        return None
    for path, address in wanted.items():
        if (look(store, branch, path) or "").rstrip("'") != address:
            return f"{path} is {look(store, branch, path)}"
    return None


def look(store: Store, branch: str, path: str) -> str | None:
    """What a reader finds."""
    record = store.kv.get(("b", branch))
    if not isinstance(record, Branch):
        return None
    for token in (record.token, *reversed(record.sealed)):
        value = store.kv.get(("e", token, path))
        if value is not None:
            return value.address if isinstance(value, Entry) else None
    return dict(store.kv[("c", record.head)].tree).get(path)
