"""Receive an object's body: decode its chunks, and check its length, hash and checksums while it passes.

A fault raises inside the body, so that the store discards what was written and nothing is placed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from xml.etree.ElementTree import Element

from refstore.records.s3_attributes import ContentDescription
from refstore_http import request_bodies
from refstore_http.request_bodies import LOOP_BYTES_MAX, BodyLimits, parse_in_turn
from refstore_s3 import checksums
from refstore_s3.checksums import ALGORITHMS, HEADER_PREFIX, SDK_ALGORITHM_HEADER, Checksums
from refstore_s3.chunked_bodies import LENGTH_HEADER, make_decoder
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.xml_documents import XML_BYTES_MAX, MalformedDocument, parse_document

T = TypeVar("T")


class CheckedBody:
    """What a request promises of its body, and the check that the body keeps it."""

    def __init__(
        self,
        request: S3Request,
        *,
        has_object: bool = True,
        has_checksum: bool = True,
    ) -> None:
        """`has_object`: whether the body is one, whose length must be known. `has_checksum`: whether the headers'
        checksums are of the body. Raises S3Error for promises that no body can keep.
        """
        verified = request.proven.verified
        self._is_chunked = verified.payload.is_chunked
        if has_object:
            self._check_length_is_known(request)
        self._decoder = make_decoder(verified, request.headers) if self._is_chunked else None
        self._sha256 = verified.payload_sha256
        self._running_sha256 = hashlib.sha256() if self._sha256 else None
        self.algorithm, self._expected = _read_checksum(request) if has_checksum else ("", {})
        self._trailer = ""
        for name in self._decoder.announced if self._decoder is not None else ():
            if self.algorithm:
                raise S3Error("InvalidRequest", "the body has more than one checksum; send one")
            self._trailer, self.algorithm = name, name.removeprefix(HEADER_PREFIX)
        self._checksums = Checksums(self._expected)
        self.compute(self.algorithm)

    def compute(self, algorithm: str) -> None:
        """Compute a checksum, promised or not, while the body is read; '': none."""
        if algorithm:
            self.algorithm = algorithm
            self._checksums.add(algorithm)

    def checksum_texts(self) -> dict[str, str]:
        """Return the checksum of the body that was read, by its algorithm."""
        return {self.algorithm: self._checksums.base64(self.algorithm)} if self.algorithm else {}

    @property
    def description(self) -> ContentDescription | None:
        """What is known of the body when it was read; None: nothing."""
        return next((ContentDescription(*each) for each in self.checksum_texts().items()), None)

    def read(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the decoded body, and check it. Raises S3Error, at the latest after the last chunk."""
        for chunk in chunks:
            # joined, because a client may send chunks of single bytes
            piece = b"".join(self._decoder.feed(chunk)) if self._decoder is not None else chunk
            if piece:
                if self._running_sha256 is not None:
                    self._running_sha256.update(piece)
                self._checksums.update(piece)
                yield piece
        self._finish()

    def _finish(self) -> None:
        trailers = self._decoder.finish() if self._decoder is not None else {}
        if self._running_sha256 is not None and not hmac.compare_digest(self._running_sha256.hexdigest(), self._sha256):
            raise S3Error(
                "XAmzContentSHA256Mismatch", "the body is not the one that was signed; send it again, unchanged"
            )
        expected = dict(self._expected)
        if self._trailer:
            expected[self.algorithm] = checksums.parse(self.algorithm, trailers.get(self._trailer, ""))
        self._checksums.check(expected)

    def _check_length_is_known(self, request: S3Request) -> None:
        if "content-length" not in request.headers and not (self._is_chunked and LENGTH_HEADER in request.headers):
            raise S3Error("MissingContentLength", "the request has no Content-Length; send the length of the body")


async def receive_body(request: S3Request, checked: CheckedBody, limits: BodyLimits) -> list[bytes] | Iterator[bytes]:
    """Receive the body: a list, checked, where it is small, or an iterator for one thread that checks while it is read.

    Raises S3Error, BodyTooLarge, BodyTooSlow, ClientDisconnect.
    """
    received = (await request_bodies.receive_object(request.http, limits, forms=False)).body
    if not isinstance(received, list):
        return checked.read(received)
    if sum(map(len, received)) <= LOOP_BYTES_MAX:
        return list(checked.read(received))
    return await request.service.run(lambda: list(checked.read(received)))  # it may have many thousand signed chunks


async def receive_document(request: S3Request, bytes_max: int, *, has_checksum: bool = True) -> bytes:
    """Receive the whole body of a request that is no object, checked. Raises S3Error, BodyTooSlow, SlowDown,
    ClientDisconnect.
    """
    checked = CheckedBody(request, has_object=False, has_checksum=has_checksum)
    declared = request_bodies.parse_content_length(request.headers.get("content-length"))
    if declared is not None and declared > bytes_max:
        raise S3Error("MaxMessageLengthExceeded", f"the body has more than {bytes_max} bytes; send less at once")
    limits = request_bodies.document_limits(request.service.settings, bytes_max)
    body = await request_bodies.receive_document(request.http, limits)
    return await parse_in_turn(request.http, body, lambda: b"".join(checked.read([body])))


async def receive_xml(
    request: S3Request,
    root: str,
    read: Callable[[Element], T],
    *,
    bytes_max: int = XML_BYTES_MAX,
    has_checksum: bool = True,
) -> T:
    """Receive a document with this root, and return what is read of it. Raises S3Error."""
    body = await receive_document(request, bytes_max, has_checksum=has_checksum)

    def parse() -> T:
        try:
            return read(parse_document(body, root))
        except MalformedDocument as error:
            raise S3Error("MalformedXML", str(error)) from None

    return await parse_in_turn(request.http, body, parse)


def _read_checksum(request: S3Request) -> tuple[str, dict[str, bytes]]:
    """Return the algorithm of the object's checksum, and the checksums that the headers promise. Raises S3Error."""
    headers = request.headers
    expected: dict[str, bytes] = {}
    if (text := headers.get("content-md5")) is not None:
        expected["md5"] = checksums.parse("md5", text)
    algorithm = ""
    for each in ALGORITHMS:
        if (text := headers.get(HEADER_PREFIX + each)) is not None:
            if algorithm:
                raise S3Error("InvalidRequest", "the request has more than one checksum; send one")
            algorithm = each
            expected[each] = checksums.parse(each, text)
    chosen = headers.get(SDK_ALGORITHM_HEADER, "").lower()
    if chosen and chosen not in ALGORITHMS:
        raise S3Error(
            "InvalidRequest", f"{SDK_ALGORITHM_HEADER} is {chosen[:20]!r}; use one of {', '.join(ALGORITHMS)}"
        )
    if chosen and algorithm and chosen != algorithm:
        raise S3Error("InvalidRequest", f"{SDK_ALGORITHM_HEADER} names another algorithm than the checksum; send one")
    return algorithm, expected
