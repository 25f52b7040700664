"""Parse a request of an S3 client: bucket and key, in the path or in the host, and its query and headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.types import Receive, Scope

from refstore.service.access_keys import Role
from refstore_api.principals import Principal
from refstore_api.service import Service
from refstore_s3.s3_errors import S3Error
from refstore_s3.signature_v4 import SignedRequest, parse_query
from refstore_s3.targets import S3Bucket, Target, split_key

if TYPE_CHECKING:
    from refstore_s3.authentication import AuthenticatedRequest
    from refstore_s3.gateway import Gateway


class S3Request:
    """A request, and what its handler needs."""

    def __init__(self, scope: Scope, receive: Receive, gateway: Gateway) -> None:
        """Raises S3Error."""
        self.scope = scope
        self.receive = receive
        self.gateway = gateway
        self.method: str = scope["method"]
        self.headers = _parse_headers(scope)
        self.query = _parse_query(scope)
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

    def to_starlette(self) -> Request:
        return Request(self.scope, self.receive)

    def check_role(self, role: Role, repository: str | None) -> None:
        """Check that the key has the role in the repository. Raises Forbidden."""
        self.principal.check(role, repository)

    async def find_bucket(self, role: Role) -> S3Bucket:
        """Return the bucket that the request names, if its key has the role there. Raises S3Error, Forbidden."""
        if self.bucket is None:
            self.bucket = await self.gateway.buckets.find(self.bucket_name)
        self.check_role(role, self.bucket.repository)
        return self.bucket

    async def find_target(self, role: Role) -> Target:
        """Return what the request's key names, likewise."""
        self.target = split_key(await self.find_bucket(role), self.key)
        return self.target


def _parse_headers(scope: Scope) -> Mapping[str, str]:
    """Return the headers by name in lower case; those that were sent several times are joined (RFC 9110, 5.3)."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        # of latin-1 more is white space, such as the last byte of a UTF-8 "à"
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip(" \t")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


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
