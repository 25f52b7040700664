"""Parse a request of an S3 client: bucket and key, in the path or in the host, and its query and headers.

Signers of URLs put headers of S3 into the query, so a field `x-amz-NAME` of a query is that header, for all who read
headers. A header has the value that was signed (decision 0195). Headers that ask for what is not there are refused:
their clients rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.types import Receive, Scope

from refstore.configuration.settings import S3Settings
from refstore.service.access_keys import Role
from refstore_http.principals import Principal
from refstore_http.service import Service
from refstore_s3.checksums import ALGORITHMS, HEADER_PREFIX, SDK_ALGORITHM_HEADER, Checksums
from refstore_s3.s3_errors import S3Error
from refstore_s3.signature_v4 import SIGNATURE_FIELDS, SignedRequest, VerifiedRequest, canonical_value, parse_query
from refstore_s3.targets import BucketLookup, S3Bucket, Target, split_key

_EXACT_HEADERS: Final = ("if-", "x-amz-copy-source", "x-amz-if-")
"""What the names of conditions begin with, and of all that chooses a copy's source."""
_EMPTY_CHECKSUMS: Final = {HEADER_PREFIX + name: (name, Checksums((name,)).base64(name)) for name in ALGORITHMS}
_HEADER_TEXT: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Gateway:
    """What the handlers share."""

    def __init__(self, service: Service, settings: S3Settings) -> None:
        self.service = service
        self.settings = settings
        self.buckets = BucketLookup(service, settings)


class AuthenticatedRequest(NamedTuple):
    """Who sends a request, and what the signature says of its body."""

    principal: Principal
    verified: VerifiedRequest


class S3Request:
    """A request, and what its handler needs."""

    def __init__(self, scope: Scope, receive: Receive, gateway: Gateway) -> None:
        """Raises S3Error."""
        self.scope = scope
        self.http = Request(scope, receive)
        self.gateway = gateway
        self.method: str = scope["method"]
        self.query = _parse_query(scope)
        self.headers = _parse_headers(scope, self.query)
        self.bucket_name, self.key = _parse_address(scope, self.headers.get("host", ""), gateway.settings.domain)
        self.proof: AuthenticatedRequest | None = None
        """Who sends the request, once that is proven."""
        self.claimed_key = ""
        """The access key that the request names, where nobody has proven it yet."""
        self.bucket: S3Bucket | None = None
        self.target: Target | None = None

    @property
    def service(self) -> Service:
        return self.gateway.service

    @property
    def principal(self) -> Principal:
        """Return who sends the request. It is called by handlers only, after the proof."""
        return self.proven.principal

    @property
    def proven(self) -> AuthenticatedRequest:
        if self.proof is None:
            raise S3Error("AccessDenied", "the request is not signed; sign it with an access key's S3 secret")
        return self.proof

    @property
    def resource(self) -> str:
        """The path, as errors name it."""
        return f"/{self.bucket_name}{'/' if self.key else ''}{self.key}" if self.bucket_name else "/"

    @property
    def to_sign(self) -> SignedRequest:
        """The request as it came, for its signature."""
        raw_path: bytes = self.scope.get("raw_path") or self.scope["path"].encode()
        query: bytes = self.scope.get("query_string") or b""
        return SignedRequest(self.method, raw_path.partition(b"?")[0], query, self.scope["headers"])

    def check_role(self, role: Role, repository: str | None) -> None:
        """Check that the key has the role in the repository. Raises Forbidden."""
        self.principal.check(role, repository)

    async def find_bucket(self, role: Role) -> S3Bucket:
        """Return the bucket that the request names, if its key has the role there. Raises S3Error, Forbidden."""
        # for the log, too, where it is refused
        self.bucket = self.gateway.buckets.parse(self.bucket_name, self.principal)
        self.bucket = await self.check_bucket(self.bucket, role)
        return self.bucket

    async def check_bucket(self, parsed: S3Bucket, role: Role) -> S3Bucket:
        """Return the bucket, if the key has the role there. That is checked before it is looked up: a key of other
        repositories does not learn which names are taken (decision 0196). Raises Forbidden, RepositoryNotFound.
        """
        self.check_role(role, parsed.repository)
        return await self.gateway.buckets.find(parsed)

    async def find_target(self, role: Role) -> Target:
        """Return what the request's key names, likewise."""
        self.target = split_key(await self.find_bucket(role), self.key)
        return self.target


def _parse_headers(scope: Scope, query: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers by name in lower case, with those of the query; those that were sent several times are joined
    (RFC 9110, 5.3). Raises S3Error.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, canonical = raw_name.decode("latin-1").lower(), canonical_value(raw_value)
        if name.startswith(_EXACT_HEADERS) and canonical != raw_value.strip(b" \t"):
            raise S3Error(
                "InvalidArgument",
                f"{name} has several blanks side by side, of which a signature keeps one; encode them as %20",
                fields={"ArgumentName": name},
            )
        value = canonical.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    for name, value in _read_query_headers(query).items():
        if headers.setdefault(name, value) != value:
            raise S3Error("InvalidArgument", f"{name} differs between the query and the header; send it once")
    return headers


def _read_query_headers(query: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that stand in the query. Raises S3Error.

    A signer that has no body yet may add the checksum of an empty one, beside the name of its algorithm. It says
    nothing of the body that is sent, and is left out.
    """
    headers: dict[str, str] = {}
    for field, text in query.items():
        name, value = field.lower(), text.encode().decode("latin-1")
        if not name.startswith("x-amz-") or field in SIGNATURE_FIELDS:
            continue
        if name in headers:
            raise S3Error("InvalidArgument", f"the query has {name} in two spellings; send it once")
        if not _HEADER_TEXT.fullmatch(value):
            raise S3Error(
                "InvalidArgument", f"{name} is no text that a header can hold; leave its control characters out"
            )
        headers[name] = value
    chosen = headers.get(SDK_ALGORITHM_HEADER, "").lower()
    return {name: value for name, value in headers.items() if _EMPTY_CHECKSUMS.get(name) != (chosen, value)}


def _parse_query(scope: Scope) -> Mapping[str, str]:
    """Return the query's fields, as they were signed. Raises S3Error."""
    raw: bytes = scope.get("query_string") or b""
    if not raw:
        return {}
    try:
        return {name.decode(): value.decode() for name, value in parse_query(raw).items()}
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "the URL's query is not UTF-8; encode it in UTF-8, written as %xx") from None


def _parse_address(scope: Scope, host: str, domain: str) -> tuple[str, str]:
    """Return bucket and key; '' where the request names none. Raises S3Error."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    try:
        path = unquote_to_bytes(raw.partition(b"?")[0]).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "the URL's path is not UTF-8; encode keys in UTF-8, written as %xx") from None
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if domain and name.lower().endswith(f".{domain}"):
        return name[: -len(domain) - 1].lower(), path.removeprefix("/")
    bucket, _, key = path.removeprefix("/").partition("/")
    return bucket, key


REFUSED_PREFIXES: Final = (
    "x-amz-copy-source-server-side-encryption",
    "x-amz-grant-",
    "x-amz-object-lock-",
    "x-amz-server-side-encryption",
)
REFUSED_HEADERS: Final = frozenset(
    {
        "x-amz-expected-bucket-owner",
        "x-amz-mfa",
        "x-amz-source-expected-bucket-owner",
        "x-amz-website-redirect-location",
        "x-amz-write-offset-bytes",
    }
)
HARMLESS_VALUES: Final = {
    "x-amz-acl": frozenset({"", "private", "bucket-owner-full-control", "bucket-owner-read"}),
    "x-amz-bucket-object-lock-enabled": frozenset({"", "false", "False"}),
    "x-amz-storage-class": frozenset({"", "STANDARD"}),
}
"""Headers with values that ask for no more than is true anyway."""


def refuse_headers(request: S3Request) -> None:
    """Raises S3Error."""
    for name, value in request.headers.items():
        is_refused = (
            value not in HARMLESS_VALUES[name]
            if name in HARMLESS_VALUES
            else name in REFUSED_HEADERS or name.startswith(REFUSED_PREFIXES)
        )
        if is_refused:
            raise S3Error("NotImplemented", f"{name} is not supported; leave it out", fields={"Header": name})
