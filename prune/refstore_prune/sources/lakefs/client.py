"""The calls of lakeFS's HTTP API that a run makes. An answer that is not as its OpenAPI description says raises
Corrupt; nothing is guessed where a field is missing, a page comes twice, or a list ends early.
"""

from __future__ import annotations

import http.client
import random
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import IO, Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from refstore.core import event_log
from refstore.core.clock import Clock, SystemClock
from refstore.core.redaction import redact_text
from refstore.errors import Corrupt, Invalid, NotFound, Unavailable
from refstore_prune.sources.lakefs.credentials import LakefsLogin

T = TypeVar("T")

RETRY_SECONDS: Final = 120.0
"""For how long a request is made again while the server is busy or out of reach."""
PAUSE_SECONDS_MAX: Final = 15.0
PREPARE_SECONDS_MAX: Final = 3_600.0
"""How long lakeFS may take to say which commits its rules keep."""
PAGE_ROWS: Final = 1_000
_REQUEST_SECONDS: Final = 60.0
_LONG_REQUEST_SECONDS: Final = 1_200.0
"""Of the calls in which the server reads a whole repository before it answers."""
_BUSY: Final = (429, 500, 502, 503, 504)
_NO_SUCH_ROUTE: Final = (404, 405, 501)

_log = event_log.get_logger(__name__)


class RepositoryFacts(msgspec.Struct, frozen=True):
    id: str
    storage_namespace: str


class LakefsRules(msgspec.Struct, frozen=True):
    """lakeFS's own rules, as far as anything is decided by them here: whether there are any."""

    default_retention_days: int
    branches: list[msgspec.Raw] | None = None


class UncommittedPage(msgspec.Struct, frozen=True):
    run_id: str
    gc_uncommitted_location: str
    """The folder of the run's files, of which the page wrote one; '': nothing was uncommitted in this part."""
    continuation_token: str | None = None

    @property
    def next_branch(self) -> str | None:
        """Return the branch at which the next page begins; None: it is not known, or there is none."""
        try:
            return msgspec.json.decode(b64decode(self.continuation_token or ""), type=_Mark).branch
        except ValueError:  # another version of lakeFS has another token
            return None


class _Mark(msgspec.Struct, frozen=True):
    branch: str


class StagedChange(msgspec.Struct, frozen=True):
    type: str


class PreparedCommits(msgspec.Struct, frozen=True):
    run_id: str
    gc_commits_location: str
    gc_addresses_location: str


class NamedCommit(msgspec.Struct, frozen=True):
    """A branch or a tag."""

    id: str
    commit_id: str


class CommitRecord(msgspec.Struct, frozen=True):
    id: str
    parents: list[str]
    creation_date: int
    """Seconds since the epoch."""
    meta_range_id: str
    metadata: dict[str, str] = {}
    version: int | None = None
    """From 1 on the first parent is the one that was on the branch; before that, it is the last. None: it is not known,
    as old servers do not say it.
    """


class _PageFacts(msgspec.Struct, frozen=True):
    has_more: bool
    next_offset: str
    results: int


class _Page(msgspec.Struct, frozen=True):
    pagination: _PageFacts
    results: list[msgspec.Raw]


class _Task(msgspec.Struct, frozen=True):
    id: str


class _TaskError(msgspec.Struct, frozen=True):
    message: str


class _TaskStatus(msgspec.Struct, frozen=True):
    task_id: str
    completed: bool
    result: PreparedCommits | None = None
    error: _TaskError | None = None


class _CollectionConfig(msgspec.Struct, frozen=True):
    grace_period: int = 0


class _Answer(NamedTuple):
    status: int
    body: bytes
    retry_after: str

    @classmethod
    def from_response(cls, response: Any, status: int) -> _Answer:
        body: bytes = response.read()  # raises IncompleteRead if it breaks off, which `read(n)` does not
        return cls(status, body, response.headers.get("Retry-After") or "")


class _RefuseRedirects(HTTPRedirectHandler):
    """Follows no redirect: the access key would go to another host."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        del req, fp, code, msg, headers, newurl
        return None


class LakefsClient:
    """Asks a server about one of its repositories."""

    def __init__(self, login: LakefsLogin, repository: str, *, clock: Clock | None = None) -> None:
        self.url = login.api_url
        self._place = f"/repositories/{quote(repository, safe='')}"
        self._key = b64encode(f"{login.access_key_id}:{login.secret_access_key}".encode()).decode()
        self._clock = clock or SystemClock()
        self._rng = random.Random()  # noqa: S311  # pauses
        self._opener = build_opener(_RefuseRedirects())
        if login.is_readable_by_others:
            _log.warning("access_key_sent_without_tls", url=self.url, advice="use https")

    # ---- what is there

    def repository(self) -> RepositoryFacts:
        """Raises NotFound."""
        return self._get(self._place, RepositoryFacts)

    def repositories(self) -> Iterator[RepositoryFacts]:
        return self._pages("/repositories", RepositoryFacts)

    def link_seconds(self) -> int:
        """Return how long an address may be linked after it was given out; 0: the server does not say."""
        found = self._find("/config/garbage-collection", _CollectionConfig)
        return 0 if found is None else found.grace_period

    def rules(self) -> LakefsRules | None:
        """Return lakeFS's rules; None: the repository has none."""
        return self._find(f"{self._place}/settings/gc_rules", LakefsRules)

    def branches(self) -> Iterator[NamedCommit]:
        return self._pages(f"{self._place}/branches", NamedCommit, show_hidden="true")

    def branch_head(self, branch: str) -> str | None:
        """Return the commit; None: the branch is gone."""
        found = self._find(f"{self._place}/branches/{quote(branch, safe='')}", NamedCommit)
        return None if found is None else found.commit_id

    def has_staged(self, branch: str) -> bool:
        """Return whether objects are staged on a branch; on one that is gone, none are."""
        changes = self._pages(f"{self._place}/branches/{quote(branch, safe='')}/diff", StagedChange)
        try:
            return any(change.type != "removed" for change in changes)
        except NotFound:
            return False

    def tags(self) -> Iterator[NamedCommit]:
        return self._pages(f"{self._place}/tags", NamedCommit)

    def commit(self, commit_id: str) -> CommitRecord:
        """Raises NotFound."""
        return self._get(f"{self._place}/commits/{quote(commit_id, safe='')}", CommitRecord)

    def history(self, commit_id: str) -> Iterator[CommitRecord]:
        """Yield the commit and all that led to it. Raises NotFound."""
        return self._pages(f"{self._place}/refs/{quote(commit_id, safe='')}/commits", CommitRecord)

    # ---- what lakeFS writes down for a collector

    def prepare_uncommitted(self) -> Iterator[UncommittedPage]:
        """Let lakeFS write down what is uncommitted on every branch; yield its answers, each for a part."""
        path = f"{self._place}/gc/prepare_uncommited"
        token, run_id = "", ""
        seen: set[str] = set()
        while True:
            body = {"continuation_token": token} if token else {}
            page = self._parse(self._post(path, body), UncommittedPage, path)
            if not page.run_id or run_id not in ("", page.run_id):
                self._refuse(path, f"it belongs to the run {page.run_id!r}, not to {run_id!r}")
            run_id = page.run_id
            yield page
            token = page.continuation_token or ""
            if not token:
                return
            if token in seen:
                self._refuse(path, "it names a next page that was read before")
            seen.add(token)

    def prepare_commits(self) -> PreparedCommits:
        """Let lakeFS write down which commits its rules keep. Raises Unavailable: it could not, or took too long."""
        path = f"{self._place}/gc/prepare_commits"
        started = self._request("POST", f"{path}/async", seconds=_LONG_REQUEST_SECONDS, accepted=_NO_SUCH_ROUTE)
        if started.status in _NO_SUCH_ROUTE:  # an older server
            return self._parse(self._post(path), PreparedCommits, path)
        task = self._parse(started.body, _Task, path)
        end = self._clock.monotonic_seconds() + PREPARE_SECONDS_MAX
        pause = 0.25
        while True:
            status = self._get(f"{path}/status", _TaskStatus, id=task.id)
            if status.task_id != task.id:
                self._refuse(path, f"it tells of the task {status.task_id!r}, not of {task.id!r}")
            if status.error is not None:
                raise Unavailable(
                    f"lakeFS could not say which commits its rules keep: {_show(status.error.message)}; look at its "
                    "log, then run again"
                )
            if status.completed:
                if status.result is None:
                    self._refuse(path, "the task has ended, and has no result")
                return status.result
            if self._clock.monotonic_seconds() >= end:
                raise Unavailable(
                    f"lakeFS has not said within {PREPARE_SECONDS_MAX:.0f} s which commits its rules keep; look at its "
                    "log, then run again"
                )
            self._clock.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    # ---- requests

    def _get(self, path: str, kind: type[T], **query: str) -> T:
        return self._parse(self._request("GET", path, query).body, kind, path)

    def _find(self, path: str, kind: type[T]) -> T | None:
        answer = self._request("GET", path, accepted=(404,))
        return None if answer.status == 404 else self._parse(answer.body, kind, path)

    def _post(self, path: str, body: object = None) -> bytes:
        return self._request("POST", path, body=body, seconds=_LONG_REQUEST_SECONDS).body

    def _pages(self, path: str, kind: type[T], **query: str) -> Iterator[T]:
        after = ""
        seen: set[str] = set()
        while True:
            page = self._get(path, _Page, **query, amount=str(PAGE_ROWS), after=after)
            if page.pagination.results != len(page.results):
                self._refuse(path, f"a page says it has {page.pagination.results} rows, and has {len(page.results)}")
            for row in page.results:
                yield self._parse(bytes(row), kind, path)
            if not page.pagination.has_more:
                return
            after = page.pagination.next_offset
            if not after or after in seen:
                self._refuse(path, "it names a next page that was read before")
            seen.add(after)

    def _parse(self, body: bytes, kind: type[T], path: str) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._refuse(path, str(error))

    def _refuse(self, path: str, reason: str) -> NoReturn:
        raise Corrupt(
            f"what {self.url}{path} answered is not what lakeFS's API describes: {reason}; check that the URL is that "
            "of a lakeFS server, and its version"
        )

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] = {},
        *,
        body: object = None,
        seconds: float = _REQUEST_SECONDS,
        accepted: tuple[int, ...] = (),
    ) -> _Answer:
        """Return the answer of a request that succeeded, or has one of the `accepted` statuses. What a server that is
        busy refuses is asked again; each of the calls may be made twice.
        """
        end = self._clock.monotonic_seconds() + RETRY_SECONDS
        attempt = 0
        while True:
            what, pause = "", 0.0
            try:
                answer = self._send(method, path, query, body, seconds)
            except (OSError, http.client.HTTPException) as error:
                reason = error.reason if isinstance(error, URLError) else error
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise Invalid(
                        f"lakeFS at {self.url} has a certificate that is not trusted here ({reason.verify_message}); "
                        "give SSL_CERT_FILE the authority's certificate"
                    ) from None
                what = f"does not answer ({type(reason).__name__}: {_show(str(reason))})"
            else:
                if 200 <= answer.status < 300 or answer.status in accepted:
                    return answer
                if answer.status not in _BUSY:
                    self._raise_refusal(method, path, answer)
                what = f"answers {answer.status} ({_message_of(answer.body)})"
                pause = float(answer.retry_after) if answer.retry_after.isdecimal() else 0.0
            pause = max(pause, self._rng.uniform(0.5, 1) * min(0.5 * 2**attempt, PAUSE_SECONDS_MAX))
            if self._clock.monotonic_seconds() + pause > end:
                raise Unavailable(f"lakeFS at {self.url} {what} to {method} {path}; run again when it does")
            self._clock.sleep(pause)
            attempt += 1

    def _send(self, method: str, path: str, query: Mapping[str, str], body: object, seconds: float) -> _Answer:
        url = f"{self.url}{path}{'?' + urlencode(query) if query else ''}"
        headers = {"Authorization": f"Basic {self._key}", "Accept": "application/json", "X-Lakefs-Client": "refstore"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = Request(  # noqa: S310  # http or https: read_login looks
            url, None if body is None else msgspec.json.encode(body), headers, method=method
        )
        try:
            with self._opener.open(request, timeout=seconds) as response:
                return _Answer.from_response(response, response.status)
        except HTTPError as error:
            with error:
                return _Answer.from_response(error, error.code)

    def _raise_refusal(self, method: str, path: str, answer: _Answer) -> NoReturn:
        said = f"lakeFS at {self.url} answers {answer.status} to {method} {path}: {_message_of(answer.body)}"
        advice = "check that the URL is that of a lakeFS server, and its version"
        if answer.status == 401:
            advice = (
                "its access key has expired, was revoked, or has no permission for this call: give it the permission, "
                "or set another key by LAKECTL_CREDENTIALS_ACCESS_KEY_ID and LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY"
            )
        elif answer.status == 403:
            advice = "give the key's user the permission for this call"
        elif answer.status == 404:
            raise NotFound(f"{said}; check the name of the repository, then run again")
        elif 300 <= answer.status < 400:
            advice = "redirects are not followed, so give the URL to which it leads as the endpoint"
        raise Invalid(f"{said}; {advice}")


def _message_of(body: bytes) -> str:
    try:
        return _show(msgspec.json.decode(body, type=_TaskError).message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "no reason"


def _show(text: str) -> str:
    """Return what a server said as a message may show it."""
    return redact_text("".join(each if each.isprintable() else " " for each in text))[:200]
