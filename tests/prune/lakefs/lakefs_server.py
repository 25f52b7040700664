"""A small lakeFS of the tests' own: repositories in memory, their files in a real object store, and the parts of
lakeFS's HTTP API that a prune uses, from its published OpenAPI description.

It is no lakeFS: there are no users, no protected branches, no merges with conflicts. What a collector sees of a lakeFS
is here: objects at random addresses, staged entries, ranges that commits share, and the files that its GC calls write.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import secrets
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from refstore.objects import ObjectStore
from tests.prune.lakefs import table_writer

ACCESS_KEY = "AKIAJEXAMPLEKEY"
SECRET_KEY = "a-secret-that-no-message-has"  # of this server only
DAY = 86_400
RANGE_ENTRIES = 3
"""Small, so that commits have several ranges."""

Answer = tuple[int, Any, Mapping[str, str]]
"""A status, what is sent as JSON (bytes: as they are), and more headers."""


@dataclass(frozen=True)
class Entry:
    address: str
    address_type: int = 1
    size: int = 0


@dataclass
class Branch:
    head: str
    staged: dict[str, Entry | None] = field(default_factory=dict)
    hidden: bool = False


@dataclass(frozen=True)
class Commit:
    id: str
    parents: tuple[str, ...]
    created: int
    metarange: str
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str] = field(default_factory=dict)
    version: int = 1


class Repository:
    """A repository whose namespace is a folder of a store."""

    def __init__(self, name: str, store: ObjectStore, namespace: str, prefix: str = "", *, now: int = 0) -> None:
        """`namespace`: as lakeFS calls it. `prefix`: of its keys in the store."""
        self.name, self.store, self.namespace, self.prefix = name, store, namespace, prefix
        self.now = now or 1_700_000_000
        self.rules: dict[str, Any] | None = None
        self.commits: dict[str, Commit] = {}
        self.tags: dict[str, str] = {}
        self.page_names = 1000
        """How many addresses a file of what is uncommitted has."""
        self.lock = threading.RLock()
        self.put("_lakefs/dummy", b"this is dummy data")
        first = self._add_commit((), {})
        self.branches = {"main": Branch(first.id)}

    # ---- what users do

    def upload(self, path: str, body: bytes = b"x", *, branch: str = "main", address: str = "") -> str:
        """Write an object and stage it; return its address."""
        entry = Entry(address or self.write_object(body), size=len(body))
        self.stage(path, entry, branch=branch)
        return entry.address

    def write_object(self, body: bytes = b"x") -> str:
        """Write an object that nothing names, at an address as lakeFS makes them."""
        address = f"data/{secrets.token_hex(10)}/{secrets.token_hex(10)}"
        self.put(address, body)
        return address

    def stage(self, path: str, entry: Entry, *, branch: str = "main") -> None:
        with self.lock:
            self.branches[branch].staged[path] = entry

    def remove(self, path: str, *, branch: str = "main") -> None:
        with self.lock:
            self.branches[branch].staged[path] = None

    def commit(self, branch: str = "main", **metadata: str) -> str:
        with self.lock:
            here = self.branches[branch]
            entries = _apply(self.commits[here.head].entries, here.staged)
            here.head = self._add_commit((here.head,), entries, metadata).id
            here.staged = {}
            return here.head

    def merge(self, source: str, branch: str = "main") -> str:
        """Let what the source has win."""
        with self.lock:
            here, there = self.branches[branch], self.branches[source]
            entries = {**self.commits[here.head].entries, **self.commits[there.head].entries}
            here.head = self._add_commit((here.head, there.head), entries).id
            return here.head

    def create_branch(self, name: str, source: str = "main", *, hidden: bool = False) -> None:
        with self.lock:
            head = self.branches[source].head if source in self.branches else source
            self.branches[name] = Branch(head, hidden=hidden)

    def delete_branch(self, name: str) -> None:
        with self.lock:
            del self.branches[name]

    def set_rules(self, default_days: int, **days: int) -> None:
        branches = [{"branch_id": name, "retention_days": each} for name, each in days.items()]
        self.rules = {"default_retention_days": default_days, "branches": branches or None}  # null, as Go writes it

    # ---- what is true

    def named(self, commits: Mapping[str, object] | set[str] | None = None) -> set[str]:
        """Return the addresses that are staged, or that these commits name (None: all)."""
        chosen = self.commits if commits is None else commits
        staged = (entry for branch in self.branches.values() for entry in branch.staged.values())
        entries = [*staged, *(entry for commit in chosen for entry in self.commits[commit].entries.values())]
        return {entry.address for entry in entries if entry is not None}

    def active_commits(self) -> set[str]:
        """Return the commits that the rules keep, as lakeFS decides: a commit is kept while it was a branch's head."""
        rules = self.rules or {"default_retention_days": 0, "branches": []}
        days = {rule["branch_id"]: rule["retention_days"] for rule in rules["branches"] or ()}
        heads = {branch.head: name for name, branch in self.branches.items()}
        first_parents = {commit.parents[0] for commit in self.commits.values() if commit.parents}
        active, seen = set[str](), dict[str, int]()
        dangling = [id_ for id_ in self.commits if id_ not in first_parents and id_ not in heads]
        for start, name in [(branch.head, name) for name, branch in self.branches.items()] + [
            (id_, "") for id_ in dangling
        ]:
            threshold = self.now - DAY * days.get(name, rules["default_retention_days"])
            if name:
                active.add(start)
            at, left_at = start, self.commits[start].created
            if not name and left_at > threshold:
                active.add(start)
            while parents := self.commits[at].parents:
                parent = parents[0]
                if seen.get(parent, threshold + 1) <= threshold:
                    break
                if self.commits[at].created > threshold:
                    active.add(parent)
                seen[parent] = threshold
                at = parent
        return active

    # ---- files

    def put(self, key: str, body: bytes) -> None:
        self.store.put(f"{self.prefix}{key}", body)

    def delete(self, key: str) -> None:
        self.store.delete_many([f"{self.prefix}{key}"])

    def _add_commit(
        self, parents: tuple[str, ...], entries: Mapping[str, Entry], metadata: Mapping[str, str] | None = None
    ) -> Commit:
        metarange = self._write_metarange(entries) if parents else ""
        text = json.dumps([parents, metarange, self.now, metadata, len(self.commits)])
        id_ = hashlib.sha256(text.encode()).hexdigest()
        commit = Commit(id_, parents, self.now, metarange, dict(entries), metadata or {})
        self.commits[id_] = commit
        self.now += 1
        return commit

    def _write_metarange(self, entries: Mapping[str, Entry]) -> str:
        """Write the ranges, and the metarange. Entries of a folder make ranges of their own, so commits share those of
        folders that did not change.
        """
        rows = [
            table_writer.entry_record(
                path, table_writer.encode_entry(entry.address, address_type=entry.address_type, size=entry.size)
            )
            for path, entry in sorted(entries.items(), key=lambda item: item[0].encode())
        ]
        groups: list[list[tuple[bytes, bytes]]] = []
        for row in rows:
            folder = row[0].rpartition(b"/")[0]
            if not groups or len(groups[-1]) == RANGE_ENTRIES or groups[-1][0][0].rpartition(b"/")[0] != folder:
                groups.append([])
            groups[-1].append(row)
        ranges = []
        for group in groups:
            body = table_writer.write_range(group)
            self.put(f"_lakefs/{table_writer.id_of(body)}", body)
            ranges.append((table_writer.id_of(body), group[0][0], group[-1][0], len(group)))
        body = table_writer.write_metarange(ranges)
        self.put(f"_lakefs/{table_writer.id_of(body)}", body)
        return table_writer.id_of(body)

    # ---- what the GC calls do

    def prepare_uncommitted(self, token: str) -> dict[str, str]:
        with self.lock:
            mark = (
                json.loads(b64decode(token)) if token else {"run_id": secrets.token_hex(10), "branch": "", "path": ""}
            )
            run_id, after = mark["run_id"], f"{mark['branch']}\0{mark['path']}"
            staged = [
                (f"{name}\0{path}", entry.address)
                for name, branch in sorted(self.branches.items())
                for path, entry in sorted(branch.staged.items())
                if entry is not None and (entry.address_type == 1 or entry.address.startswith(f"{self.namespace}/"))
            ]
            page = [row for row in staged if row[0] >= after][: self.page_names]
            answer = {"run_id": run_id, "gc_uncommitted_location": "", "continuation_token": ""}
            if page:
                folder = f"_lakefs/retention/gc/uncommitted/{run_id}/uncommitted/"
                names = [address.removeprefix(f"{self.namespace}/") for _, address in page]
                self.put(f"{folder}{secrets.token_hex(10)}", _write_uncommitted(names, self.now))
                answer["gc_uncommitted_location"] = f"{self.namespace}/{folder}"
                if page[-1] != staged[-1]:
                    branch, _, path = staged[staged.index(page[-1]) + 1][0].partition("\0")
                    answer["continuation_token"] = encode_mark(run_id, branch, path)
            return answer

    def prepare_commits(self) -> dict[str, str]:
        with self.lock:
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(["commit_id", "expired", "metarange_id"])
            writer.writerows([id_, "false", self.commits[id_].metarange] for id_ in self.active_commits())
            run_id = secrets.token_hex(10)
            key = f"_lakefs/retention/gc/commits/run_id={run_id}/commits.csv"
            self.put(key, text.getvalue().encode())
            folder = f"{self.namespace}/_lakefs/retention/gc/addresses/"
            return {
                "run_id": run_id,
                "gc_commits_location": f"{self.namespace}/{key}",
                "gc_addresses_location": folder,
            }

    def log(self, ref: str) -> list[Commit]:
        """Return what led to a commit, the newest first."""
        found, waiting = dict[str, Commit](), [ref]
        while waiting:
            commit = self.commits[waiting.pop()]
            if commit.id not in found:
                found[commit.id] = commit
                waiting += commit.parents
        return sorted(found.values(), key=lambda commit: -commit.created)


def _apply(entries: Mapping[str, Entry], staged: Mapping[str, Entry | None]) -> dict[str, Entry]:
    merged = {**entries, **staged}
    return {path: entry for path, entry in merged.items() if entry is not None}


def encode_mark(run_id: str, branch: str = "", path: str = "") -> str:
    return b64encode(json.dumps({"run_id": run_id, "branch": branch, "path": path}).encode()).decode()


def _write_uncommitted(addresses: list[str], now: int) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"physical_address": addresses, "creation_date": pa.array([now] * len(addresses), pa.int64())})
    pq.write_table(table, sink, compression="gzip")
    return sink.getvalue()


class Lakefs:
    """The server: its repositories, and what a test changes of its answers."""

    def __init__(self, *repositories: Repository) -> None:
        self.repositories = {each.name: each for each in repositories}
        self.url = ""
        self.requests: list[str] = []
        """`METHOD path` of each request, without the beginning of the API's paths."""
        self.change: Callable[[str, Answer], Answer] = lambda _request, answer: answer
        """Returns what is answered to a request instead. It may also do something in between."""
        self.has_async = True
        self.page_rows = 1000
        self._tasks: dict[str, dict[str, Any]] = {}

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Answer:
        parts = [unquote(part) for part in path.split("/")]
        match (method, parts):
            case "GET", ["config", "garbage-collection"]:
                return 200, {"grace_period": DAY}, {}
            case "GET", ["repositories"]:
                return self._page([_show_repository(each) for each in self.repositories.values()], query)
            case _, ["repositories", name, *rest] if name in self.repositories:
                return self._answer_repository(self.repositories[name], method, rest, query, body)
            case _:
                return _not_found()

    def _answer_repository(
        self, repository: Repository, method: str, rest: list[str], query: Mapping[str, str], body: Any
    ) -> Answer:
        match (method, rest):
            case "GET", []:
                return 200, _show_repository(repository), {}
            case "GET", ["settings", "gc_rules"]:
                return _not_found() if repository.rules is None else (200, repository.rules, {})
            case "GET", ["branches"]:
                rows = [
                    {"id": name, "commit_id": branch.head}
                    for name, branch in sorted(repository.branches.items())
                    if not branch.hidden or query.get("show_hidden") == "true"
                ]
                return self._page(rows, query)
            case "GET", ["branches", name] if name in repository.branches:
                return 200, {"id": name, "commit_id": repository.branches[name].head}, {}
            case "GET", ["branches", name, "diff"] if name in repository.branches:
                staged = sorted(repository.branches[name].staged.items())
                changes = [{"id": path, "type": "removed" if entry is None else "added"} for path, entry in staged]
                return self._page([{**each, "path": each["id"], "path_type": "object"} for each in changes], query)
            case "GET", ["tags"]:
                return self._page(
                    [{"id": name, "commit_id": at} for name, at in sorted(repository.tags.items())], query
                )
            case "GET", ["commits", id_] if id_ in repository.commits:
                return 200, _show_commit(repository.commits[id_]), {}
            case "GET", ["refs", ref, "commits"] if ref in repository.commits:
                return self._page([_show_commit(commit) for commit in repository.log(ref)], query)
            case "POST", ["gc", "prepare_uncommited"]:
                return 201, repository.prepare_uncommitted((body or {}).get("continuation_token", "")), {}
            case "POST", ["gc", "prepare_commits"] if repository.rules is not None:
                return 201, repository.prepare_commits(), {}
            case "POST", ["gc", "prepare_commits", "async"] if self.has_async:
                return 202, {"id": self._start_task(repository)}, {}
            case "GET", ["gc", "prepare_commits", "status"] if query.get("id") in self._tasks:
                return 200, self._look_at_task(query["id"], repository), {}
            case _:
                return _not_found()

    def _start_task(self, repository: Repository) -> str:
        id_ = f"GCPC{secrets.token_hex(8)}"
        self._tasks[id_] = {"task_id": id_, "completed": False, "update_time": "2026-01-01T00:00:00Z"}
        return id_

    def _look_at_task(self, id_: str, repository: Repository) -> dict[str, Any]:
        """The first look finds it under way."""
        task = dict(self._tasks[id_])
        if repository.rules is None:
            self._tasks[id_] |= {"completed": True, "error": {"message": "get gc rules: not found"}}
        elif "result" not in task:
            self._tasks[id_] |= {"completed": True, "result": repository.prepare_commits()}
        return task

    def _page(self, rows: list[dict[str, Any]], query: Mapping[str, str]) -> Answer:
        after, most = query.get("after", ""), min(int(query.get("amount", 100)), self.page_rows)
        ids = [row["id"] for row in rows]
        start = ids.index(after) + 1 if after in ids else sum(each < after for each in ids)
        page = rows[start : start + most]
        has_more = start + most < len(rows)
        pagination = {
            "has_more": has_more,
            "next_offset": page[-1]["id"] if has_more else "",
            "results": len(page),
            "max_per_page": self.page_rows,
        }
        return 200, {"pagination": pagination, "results": page}, {}


def _not_found() -> Answer:
    return 404, {"message": "not found"}, {}


def _show_repository(repository: Repository) -> dict[str, Any]:
    return {
        "id": repository.name,
        "storage_namespace": repository.namespace,
        "default_branch": "main",
        "creation_date": 1,
        "storage_id": "",
    }


def _show_commit(commit: Commit) -> dict[str, Any]:
    return {
        "id": commit.id,
        "parents": list(commit.parents),
        "committer": "somebody",
        "message": "a commit",
        "creation_date": commit.created,
        "meta_range_id": commit.metarange,
        "metadata": dict(commit.metadata),
        "version": commit.version,
        "generation": 1,
    }


@contextmanager
def serve(lakefs: Lakefs, certificate: Path | None = None, key: Path | None = None) -> Iterator[str]:
    """Serve on a port of this machine, with TLS if there is a certificate; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        do_POST = do_GET  # noqa: N815

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            path = parts.path.removeprefix("/api/v1/")
            request = f"{self.command} {path}"
            lakefs.requests.append(request)
            login = b64encode(f"{ACCESS_KEY}:{SECRET_KEY}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {login}":
                answer: Answer = 401, {"message": "error authenticating request"}, {}
            else:
                query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
                answer = lakefs.answer(self.command, path, query, json.loads(body) if body else None)
            status, content, headers = lakefs.change(request, answer)
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(sent)),
                "Connection": "close",
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # a client that does not trust it
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    lakefs.url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    try:
        yield lakefs.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
