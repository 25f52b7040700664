"""Verify AWS Signature Version 4 of requests to S3: in the `Authorization` header, or in the query of a presigned URL.

Pure functions over a request as it came, with nothing decoded. What was signed must have one meaning only, so whatever
could be read in two ways is refused: a parameter or a signed header that stands there twice, a broken escape, a second
way of signing. Readers of the query use `parse_query`, and read exactly what was signed.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from refstore_s3.s3_errors import S3Error

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SKEW_MS: Final = 15 * 60 * 1000
"""How far the date of a request may be from our clock. So long may a request that somebody has read be sent again."""
PRESIGNED_SECONDS_MAX: Final = 7 * 24 * 3600
PARAMETERS_MAX: Final = 256
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()

_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ENCODED_SLASH: Final = re.compile(rb"%2[Ff]")
_HEX_SHA256: Final = re.compile("[0-9a-f]{64}")
_TIMESTAMP: Final = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,9}", re.ASCII)
_CREDENTIAL: Final = re.compile(r"([\w.~+=-]{1,128})/(\d{8})/([\w.-]{1,64})/s3/aws4_request", re.ASCII)
_SIGNED_HEADERS: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+(;[!#$%&'*+.^_`|~0-9a-z-]+)*", re.ASCII)
_AUTHORIZATION: Final = re.compile(r"AWS4-HMAC-SHA256[ \t]+(?P<fields>.+)", re.ASCII)
_SINGLE: Final = frozenset({b"authorization", b"content-length", b"date", b"host"})
"""Headers that may stand in a request once, beside all `x-amz-` headers and all signed ones."""
_QUERY_FIELDS: Final = ("X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature")
SIGNATURE_FIELDS: Final = frozenset({"X-Amz-Algorithm", *_QUERY_FIELDS})
"""The fields of a presigned URL that are the signature; each other `x-amz-` field is a header."""


_VERSION_4: Final = (
    " The AWS CLI does after: aws configure set default.s3.signature_version s3v4; boto3, and what is built on it, with"
    ' Config(signature_version="s3v4").'
)
"""Their setting for URLs, which they sign by version 2 where the endpoint is not Amazon's."""


class PayloadKind(Enum):
    """How the body is sent, and what of it is signed: the values of `x-amz-content-sha256`."""

    HASHED = "a SHA-256"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_CHUNKS_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

    @property
    def is_chunked(self) -> bool:
        """Say whether the body is in the encoding `aws-chunked`."""
        return self.value.startswith("STREAMING-")

    @property
    def has_signed_chunks(self) -> bool:
        """Say whether each chunk carries a signature."""
        return self in (PayloadKind.SIGNED_CHUNKS, PayloadKind.SIGNED_CHUNKS_TRAILER)


class SignedRequest(NamedTuple):
    """A request as ASGI has it."""

    method: str
    raw_path: bytes
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]
    """Names in lower case."""


class Credential(NamedTuple):
    """Who signed, and the scope of the signature."""

    key_id: str
    date: str
    region: str

    @property
    def scope(self) -> str:
        """The scope as it is signed."""
        return f"{self.date}/{self.region}/s3/aws4_request"


class ChunkSigner:
    """Make the signatures of a body's chunks; each one is made from the one before it, the first from the request's."""

    def __init__(self, signing_key: bytes, timestamp: str, scope: str, seed: str) -> None:
        self._signing_key = signing_key
        self._timestamp = timestamp
        self._scope = scope
        self._signature = seed

    def matches_chunk(self, chunk_sha256: str, signature: str) -> bool:
        """Say whether this is the signature of the next chunk, in constant time, and go on to the one after it."""
        return self._matches("AWS4-HMAC-SHA256-PAYLOAD", f"{EMPTY_SHA256}\n{chunk_sha256}", signature)

    def matches_trailers(self, trailers_sha256: str, signature: str) -> bool:
        """Say whether this is the signature of the trailers, behind the last chunk, in constant time."""
        return self._matches("AWS4-HMAC-SHA256-TRAILER", trailers_sha256, signature)

    def _matches(self, algorithm: str, hashes: str, signature: str) -> bool:
        text = "\n".join((algorithm, self._timestamp, self._scope, self._signature, hashes))
        self._signature = hmac.digest(self._signing_key, text.encode(), "sha256").hex()
        return hmac.compare_digest(self._signature.encode(), signature.encode())


class VerifiedRequest(NamedTuple):
    """What a signature that holds says of its request."""

    payload: PayloadKind
    payload_sha256: str
    """In hexadecimal digits; empty unless the kind is `HASHED`."""
    chunk_signer: ChunkSigner | None
    """There if the chunks are signed."""


class SignatureClaims(NamedTuple):
    """What a request says of its signature."""

    credential: Credential
    timestamp: str
    signed_headers: str
    signature: str
    presigned_seconds: int | None
    """How long a presigned URL is valid; None for a signature in the header."""
    payload: str


def verify(
    request: SignedRequest, secrets: Sequence[str], now_ms: int, claims: SignatureClaims | None = None
) -> VerifiedRequest:
    """Check the signature with each of the secrets, and its date; raise an `S3Error` if one of them does not hold.

    `claims`: those of the request, where they were read already.
    """
    claims = claims or read_claims(request)
    _check_headers(request.headers, claims.signed_headers.split(";"))
    _check_date(claims, now_ms)
    kind = _kind_of(claims.payload)
    text = _text_to_sign(claims, canonical_request(request, claims.signed_headers, claims.payload))
    signing_key = b""
    for secret in secrets:
        key = make_signing_key(secret, claims.credential)
        if hmac.compare_digest(hmac.digest(key, text, "sha256").hex().encode(), claims.signature.encode()):
            signing_key = key
    if not signing_key:
        raise S3Error(
            "SignatureDoesNotMatch",
            "The signature is not the one that belongs to this request and access key. Check the secret, and that"
            " nothing between client and server changes the path, the query or the signed headers.",
        )
    return VerifiedRequest(
        kind,
        claims.payload if kind is PayloadKind.HASHED else "",
        ChunkSigner(signing_key, claims.timestamp, claims.credential.scope, claims.signature)
        if kind.has_signed_chunks
        else None,
    )


def canonical_request(request: SignedRequest, signed_headers: str, payload: str) -> bytes:
    """Return the text of which a hash is signed: the same for every spelling of a request, and for no other request."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        values.setdefault(name, []).append(canonical_value(value))
    names = signed_headers.encode("latin-1").split(b";")
    lines = [b"%s:%s" % (name, b",".join(values.get(name, []))) for name in names]
    return b"\n".join(
        (
            request.method.encode("latin-1"),
            canonical_path(request.raw_path),
            canonical_query(parse_query(request.query)),
            *lines,
            b"",
            signed_headers.encode("latin-1"),
            payload.encode("latin-1"),
        )
    )


def canonical_value(value: bytes) -> bytes:
    """Return the value of a header as it is signed. Its white space may be changed without breaking the signature, so
    it says nothing.
    """
    return b" ".join(value.split())


def canonical_path(raw_path: bytes) -> bytes:
    """Return the path with the one spelling of each byte.

    An encoded slash stays one, and no part is taken away: `..`, `.` and `//` are names in S3.
    """
    if _BROKEN_ESCAPE.search(raw_path):
        raise S3Error("InvalidURI", "The path has a percent sign without two hexadecimal digits. Encode it as %25.")
    parts = _ENCODED_SLASH.split(raw_path)
    return b"%2F".join(_encode(unquote_to_bytes(part), safe="/") for part in parts) or b"/"


def parse_query(query: bytes) -> dict[bytes, bytes]:
    """Return the decoded parameters; `+` is a space, as everywhere in queries, and `;` separates nothing."""
    if _BROKEN_ESCAPE.search(query):
        raise S3Error("InvalidURI", "The query has a percent sign without two hexadecimal digits. Encode it as %25.")
    pieces = [piece for piece in query.split(b"&", PARAMETERS_MAX) if piece]
    if len(pieces) > PARAMETERS_MAX:
        raise S3Error("InvalidArgument", f"A query may have {PARAMETERS_MAX} parameters; this one has more.")
    parameters: dict[bytes, bytes] = {}
    for piece in pieces:
        name, _, value = (unquote_to_bytes(part) for part in piece.replace(b"+", b" ").partition(b"="))
        if name in parameters:
            raise S3Error("InvalidArgument", f"The query has the parameter {_text(name)!r} twice. Send it once.")
        parameters[name] = value
    return parameters


def canonical_query(parameters: Mapping[bytes, bytes]) -> bytes:
    """Return the query with the one spelling of each byte, in order, without the signature itself."""
    pairs = sorted((_encode(name), _encode(value)) for name, value in parameters.items() if name != b"X-Amz-Signature")
    return b"&".join(b"%s=%s" % pair for pair in pairs)


def make_signing_key(secret: str, credential: Credential) -> bytes:
    """Return the key that signs within this scope."""
    return _make_signing_key(secret, credential.date, credential.region)


@lru_cache(maxsize=1024)
def _make_signing_key(secret: str, date: str, region: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _text_to_sign(claims: SignatureClaims, canonical: bytes) -> bytes:
    digest = hashlib.sha256(canonical).hexdigest()
    return "\n".join((ALGORITHM, claims.timestamp, claims.credential.scope, digest)).encode()


def read_claims(request: SignedRequest) -> SignatureClaims:
    """Return what a request says of its signature; raise an `S3Error` if it is unsigned or cannot be read."""
    _refuse_repeats(request.headers, _SINGLE)
    headers = {name: _text(value.strip()) for name, value in request.headers}
    parameters = parse_query(request.query)
    authorization = headers.get(b"authorization", "")
    in_query = any(name in parameters for name in (b"X-Amz-Algorithm", b"X-Amz-Signature", b"X-Amz-Credential"))
    if authorization and in_query:
        raise S3Error("InvalidArgument", "The request is signed in the query and in the header. Use one of them.")
    if in_query:
        return _claims_of_query({_text(name): _text(value) for name, value in parameters.items()}, headers)
    if not authorization and b"Signature" not in parameters:
        raise S3Error("AccessDenied", "The request is not signed. Give the client an access key and its S3 secret.")
    matched = _AUTHORIZATION.fullmatch(authorization)
    if matched is None:
        raise S3Error("InvalidRequest", f"This way of signing is not supported. Please use {ALGORITHM}.{_VERSION_4}")
    return _claims_of_header(matched["fields"], headers)


def _claims_of_header(authorization: str, headers: Mapping[bytes, str]) -> SignatureClaims:
    fields: dict[str, str] = {}
    for field in authorization.split(","):
        name, _, value = field.strip().partition("=")
        if name in fields:
            raise _malformed_header(f"It has the field {name!r} twice.")
        fields[name] = value
    if fields.keys() != {"Credential", "SignedHeaders", "Signature"}:
        raise _malformed_header("It must have the fields Credential, SignedHeaders and Signature.")
    credential = _parse_credential_field(fields["Credential"], "AuthorizationHeaderMalformed")
    signed = _parse_signed_headers(fields["SignedHeaders"], "AuthorizationHeaderMalformed")
    payload = headers.get(b"x-amz-content-sha256")
    if payload is None:
        raise S3Error("InvalidRequest", "The header x-amz-content-sha256 is missing.")
    timestamp = headers.get(b"x-amz-date")
    if timestamp is None:
        if "date" not in signed.split(";"):
            raise S3Error("AccessDenied", "A signed request needs the header x-amz-date, or Date, and must sign it.")
        timestamp = _timestamp_of(headers.get(b"date", ""))
    _check_timestamp(timestamp, credential, "AuthorizationHeaderMalformed")
    return SignatureClaims(credential, timestamp, signed, fields["Signature"], None, payload)


def _claims_of_query(parameters: Mapping[str, str], headers: Mapping[bytes, str]) -> SignatureClaims:
    code = "AuthorizationQueryParametersError"
    missing = [name for name in _QUERY_FIELDS if name not in parameters]
    if missing:
        raise S3Error(code, f"The query of a presigned URL needs {', '.join(_QUERY_FIELDS)}; {missing[0]} is missing.")
    if parameters.get("X-Amz-Algorithm") != ALGORITHM:
        raise S3Error(code, f"X-Amz-Algorithm supports {ALGORITHM} only.")
    credential = _parse_credential_field(parameters["X-Amz-Credential"], code)
    signed = _parse_signed_headers(parameters["X-Amz-SignedHeaders"], code)
    seconds = parameters["X-Amz-Expires"]
    if not _SECONDS.fullmatch(seconds) or not 1 <= int(seconds) <= PRESIGNED_SECONDS_MAX:
        raise S3Error(code, f"X-Amz-Expires must be a number of seconds from 1 to {PRESIGNED_SECONDS_MAX}.")
    _check_timestamp(parameters["X-Amz-Date"], credential, code)
    told = {value for name, value in parameters.items() if name.lower() == "x-amz-content-sha256"}
    told |= {headers.get(b"x-amz-content-sha256")} - {None}
    if len(told) > 1:
        raise S3Error("InvalidArgument", "x-amz-content-sha256 differs between the query and the header. Send it once.")
    payload = next(iter(told), None) or PayloadKind.UNSIGNED.value
    signature = parameters["X-Amz-Signature"]
    return SignatureClaims(credential, parameters["X-Amz-Date"], signed, signature, int(seconds), payload)


def _parse_credential_field(text: str, code: str) -> Credential:
    matched = _CREDENTIAL.fullmatch(text)
    if matched is None:
        raise S3Error(code, "The credential must be ACCESS-KEY/YYYYMMDD/REGION/s3/aws4_request.")
    return Credential(*matched.groups())


def _parse_signed_headers(text: str, code: str) -> str:
    names = text.split(";")
    if not _SIGNED_HEADERS.fullmatch(text) or names != sorted(set(names)):
        raise S3Error(code, "SignedHeaders must name headers in lower case, in order, each once, separated by ';'.")
    if "host" not in names:
        raise S3Error(code, "The header host must be signed.")
    return text


def _timestamp_of(date: str) -> str:
    if _TIMESTAMP.fullmatch(date):
        return date
    try:
        parsed = parsedate_to_datetime(date)
        at = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # a year or an offset beyond what there is
        raise S3Error(
            "AccessDenied", "The header Date is no date of HTTP. Send x-amz-date as YYYYMMDDTHHMMSSZ."
        ) from None
    return at.strftime("%Y%m%dT%H%M%SZ")


def _check_timestamp(timestamp: str, credential: Credential, code: str) -> None:
    if not _TIMESTAMP.fullmatch(timestamp):
        raise S3Error(code, "The date of the signature must be written as YYYYMMDDTHHMMSSZ.")
    if timestamp[:8] != credential.date:
        raise S3Error(code, "The date of the credential is not the date of the signature.")


def _check_headers(headers: Sequence[tuple[bytes, bytes]], signed: Sequence[str]) -> None:
    """Refuse headers that stand there twice, that are signed and missing, or that S3 wants signed and are not."""
    names = {name.encode("latin-1") for name in signed}
    _refuse_repeats(headers, names)
    there = {name for name, _ in headers}
    for name in sorted(names - there):
        raise S3Error("AccessDenied", f"The header {_text(name)} is signed and missing.")
    for name in sorted(there - names):
        if name.startswith(b"x-amz-"):
            raise S3Error(
                "AccessDenied",
                f"The header {_text(name)} is not signed. Sign each header whose name begins with x-amz-.",
                fields={"HeadersNotSigned": _text(name)},
            )


def _refuse_repeats(headers: Sequence[tuple[bytes, bytes]], single: Collection[bytes]) -> None:
    if len({name for name, _ in headers}) == len(headers):
        return
    for name, times in Counter(name for name, _ in headers).items():
        if times > 1 and (name in single or name.startswith(b"x-amz-")):
            raise S3Error(
                "InvalidRequest", f"The header {_text(name)} stands in the request {times} times. Send it once."
            )


def _parse_timestamp(text: str) -> datetime:
    """Parse a date of the form of `_TIMESTAMP`, in a tenth of the time of `strptime`. Raises ValueError."""
    year, month, day = int(text[:4]), int(text[4:6]), int(text[6:8])
    return datetime(year, month, day, int(text[9:11]), int(text[11:13]), int(text[13:15]), tzinfo=UTC)


def _check_date(claims: SignatureClaims, now_ms: int) -> None:
    try:
        signed_at = _parse_timestamp(claims.timestamp)
    except ValueError:
        raise S3Error("AccessDenied", f"{claims.timestamp} is no date.") from None
    signed_at_ms = int(signed_at.timestamp()) * 1000
    if claims.presigned_seconds is None:
        if abs(now_ms - signed_at_ms) > SKEW_MS:
            raise S3Error(
                "RequestTimeTooSkewed",
                "The date of the request differs from the server's by more than 15 minutes. Set the client's clock.",
                fields={"RequestTime": claims.timestamp, "MaxAllowedSkewMilliseconds": str(SKEW_MS)},
            )
    elif now_ms < signed_at_ms - SKEW_MS:
        raise S3Error("AccessDenied", "The presigned URL is not valid yet. Check the clock of whoever signed it.")
    elif now_ms >= signed_at_ms + claims.presigned_seconds * 1000:
        raise S3Error(
            "AccessDenied",
            "The presigned URL has expired. Ask for a new one.",
            fields={"X-Amz-Expires": str(claims.presigned_seconds)},
        )


def _kind_of(payload: str) -> PayloadKind:
    if _HEX_SHA256.fullmatch(payload):
        return PayloadKind.HASHED
    for kind in PayloadKind:
        if payload == kind.value and kind is not PayloadKind.HASHED:
            return kind
    if payload.startswith("STREAMING-AWS4-ECDSA-"):
        raise S3Error("NotImplemented", f"Chunks signed with ECDSA are not supported. Please use {ALGORITHM}.")
    kinds = ", ".join(kind.value for kind in PayloadKind if kind is not PayloadKind.HASHED)
    raise S3Error(
        "InvalidArgument",
        f"x-amz-content-sha256 must be the body's SHA-256 in lower-case hexadecimal digits, or one of {kinds}.",
        fields={"ArgumentName": "x-amz-content-sha256"},
    )


def _malformed_header(reason: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", f"The Authorization header cannot be read. {reason}")


def _encode(data: bytes, safe: str = "") -> bytes:
    return quote_from_bytes(data, safe=safe).encode("ascii")


def _text(data: bytes) -> str:
    return data.decode("latin-1")
