"""The calls of lakeFS's HTTP API that a run makes. An answer that is not as its OpenAPI description says raises
Corrupt; nothing is guessed where a field is missing, a page comes twice, or a list ends early.
"""

from __future__ import annotations

import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager, Retry
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util import make_headers

from refstore.core import event_log
from refstore.core.clock import Clock, SystemClock
from refstore.core.redaction import redact_text
from refstore.errors import Corrupt, Invalid, NotFound, Unavailable
from refstore_prune.sources.lakefs.credentials import LakefsLogin

T = TypeVar("T")

PAUSE_SECONDS_MAX: Final = 15.0
PREPARE_SECONDS_MAX: Final = 3_600.0
"""How long lakeFS may take to say which commits its rules keep."""
PAGE_ROWS: Final = 1_000
_REQUEST_SECONDS: Final = 60.0
_LONG_REQUEST_SECONDS: Final = 1_200.0
"""Of the calls in which the server reads a whole repository before it answers."""
_BUSY: Final = (429, 500, 502, 503, 504)
_RETRIES: Final = Retry(
    total=10,  # a minute and a half
    read=2,
    other=0,
    allowed_methods=None,
    status_forcelist=_BUSY,
    backoff_factor=0.5,
    backoff_max=PAUSE_SECONDS_MAX,
    raise_on_status=False,
    respect_retry_after_header=False,
)
"""While the server is busy or out of reach, each of the calls is made again: all of them may be made twice."""
_NO_SUCH_ROUTE: Final = (404, 405, 501)

_log = event_log.get_logger(__name__)


class RepositoryFacts(msgspec.Struct, frozen=True):
    id: str
    storage_namespace: str


class UncommittedPage(msgspec.Struct, frozen=True):
    run_id: str
    gc_uncommitted_location: str
    """The folder of the run's files, of which the page wrote one; '': nothing was uncommitted in this part."""
    continuation_token: str | None = None

    @property
    def next_branch(self) -> str | None:
        """Return the branch at which the next page begins; None: it is not known, or there is none."""
        try:
            return msgspec.json.decode(b64decode(self.continuation_token or ""), type=_NextPart).branch
        except ValueError:  # another version of lakeFS has another token
            return None


class _NextPart(msgspec.Struct, frozen=True):
    branch: str


class StagedChange(msgspec.Struct, frozen=True):
    type: str


class PreparedCommits(msgspec.Struct, frozen=True):
    run_id: str
    gc_commits_location: str


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


class LakefsClient:
    """Asks a server about one of its repositories."""

    def __init__(self, login: LakefsLogin, repository: str, *, clock: Clock | None = None) -> None:
        self.url = login.api_url
        self._place = f"/repositories/{quote(repository, safe='')}"
        self._headers = {
            **make_headers(basic_auth=f"{login.access_key_id}:{login.secret_access_key}"),
            "Accept": "application/json",
            "X-Lakefs-Client": "refstore",
        }
        self._clock = clock or SystemClock()
        self._pool = _open_pool(login.api_url)
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

    def has_rules(self) -> bool:
        """Return whether the repository has rules of lakeFS's own."""
        return self._request("GET", f"{self._place}/settings/gc_rules", accepted=(404,)).status != 404

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
        task = self._parse(started.data, _Task, path)
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
        return self._parse(self._request("GET", path, query).data, kind, path)

    def _find(self, path: str, kind: type[T]) -> T | None:
        answer = self._request("GET", path, accepted=(404,))
        return None if answer.status == 404 else self._parse(answer.data, kind, path)

    def _post(self, path: str, body: object = None) -> bytes:
        return self._request("POST", path, body=body, seconds=_LONG_REQUEST_SECONDS).data

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
    ) -> BaseHTTPResponse:
        """Return the answer of a request that succeeded, or has one of the `accepted` statuses. No redirect is
        followed: the access key would go to another host.
        """
        url = f"{self.url}{path}{'?' + urlencode(query) if query else ''}"
        try:
            answer = self._pool.request(method, url, headers=self._headers, json=body, timeout=seconds, redirect=False)
        except HTTPError as error:
            reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
            for each in reason.args:
                if isinstance(each, ssl.SSLCertVerificationError):
                    raise Invalid(
                        f"lakeFS at {self.url} has a certificate that is not trusted here ({each.verify_message}); "
                        "give SSL_CERT_FILE the authority's certificate"
                    ) from None
            what = f"does not answer ({type(reason).__name__}: {_show(str(reason))})"
        else:
            if 200 <= answer.status < 300 or answer.status in accepted:
                return answer
            if answer.status not in _BUSY:
                self._raise_refusal(method, path, answer)
            what = f"answers {answer.status} ({_message_of(answer.data)})"
        raise Unavailable(f"lakeFS at {self.url} {what} to {method} {path}; run again when it does")

    def _raise_refusal(self, method: str, path: str, answer: BaseHTTPResponse) -> NoReturn:
        said = f"lakeFS at {self.url} answers {answer.status} to {method} {path}: {_message_of(answer.data)}"
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


def _open_pool(url: str) -> PoolManager:
    """Return what connects to a server, through the proxy that the environment names for it."""
    parts = urlsplit(url)
    proxy = "" if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme, "")
    if not proxy:
        return PoolManager(retries=_RETRIES)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    login, _, _ = urlsplit(proxy).netloc.rpartition("@")
    return ProxyManager(
        proxy, retries=_RETRIES, proxy_headers=make_headers(proxy_basic_auth=unquote(login)) if login else None
    )


def _message_of(body: bytes) -> str:
    try:
        return _show(msgspec.json.decode(body, type=_TaskError).message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "no reason"


def _show(text: str) -> str:
    """Return what a server said as a message may show it."""
    return redact_text("".join(each if each.isprintable() else " " for each in text))[:200]
