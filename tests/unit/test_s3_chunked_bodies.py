"""Bodies in chunks: AWS's published ones and boto's are decoded, and no byte counts of one that was changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from refstore_s3 import chunked_bodies
from refstore_s3.checksums import ALGORITHMS, Checksums
from refstore_s3.chunked_bodies import ChunkDecoder, make_decoder
from refstore_s3.s3_errors import S3Error
from refstore_s3.signature_v4 import PayloadKind, SignedRequest, verify
from tests.kit.s3_signing import KEY_ID, SECRET, S3Signer

DOCUMENTED_MS = int(datetime(2013, 5, 24, tzinfo=UTC).timestamp()) * 1000
SIGNER = S3Signer(DOCUMENTED_MS)
SIGNED = PayloadKind.SIGNED_CHUNKS.value
SIGNED_TRAILER = PayloadKind.SIGNED_CHUNKS_TRAILER.value
UNSIGNED_TRAILER = PayloadKind.UNSIGNED_CHUNKS_TRAILER.value
PIECES = (1, 7, 64, 1 << 20)


def _decoder(payload: str, size_bytes: int, *trailers: str, **headers: str) -> tuple[ChunkDecoder, str]:
    """Return the decoder of a request that was signed and verified, and the signature that seeds its chunks."""
    there = {"x-amz-decoded-content-length": str(size_bytes), **headers}
    if trailers:
        there["x-amz-trailer"] = ",".join(trailers)
    signed = SIGNER.sign("PUT", "/b/k", headers=there, payload=payload)
    request = SignedRequest("PUT", b"/b/k", b"", [(name.encode(), value.encode()) for name, value in signed.items()])
    return make_decoder(verify(request, [SECRET], DOCUMENTED_MS), signed), signed["authorization"][-64:]


def _decode(decoder: ChunkDecoder, body: bytes, piece_bytes: int = 1 << 20) -> tuple[bytes, dict[str, str]]:
    decoded = b"".join(b"".join(decoder.feed(body[at : at + piece_bytes])) for at in range(0, len(body), piece_bytes))
    return decoded, decoder.finish()


def _documented(payload: str, signed_headers: Mapping[str, str], seed: str) -> ChunkDecoder:
    headers = {"host": "s3.amazonaws.com", "x-amz-date": "20130524T000000Z", "x-amz-content-sha256": payload}
    headers |= {"content-encoding": "aws-chunked", "x-amz-storage-class": "REDUCED_REDUNDANCY"}
    headers |= {"x-amz-decoded-content-length": "66560", **signed_headers}
    fields = f"Credential={KEY_ID}/20130524/us-east-1/s3/aws4_request,SignedHeaders={';'.join(sorted(headers))}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 {fields},Signature={seed}"
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = SignedRequest("PUT", b"/examplebucket/chunkObject.txt", b"", sent)
    return make_decoder(verify(request, [SECRET], DOCUMENTED_MS), headers)


def _documented_body(*signatures: str) -> bytes:
    first, second, last = (f";chunk-signature={signature}\r\n".encode() for signature in signatures)
    return b"10000" + first + b"a" * 65536 + b"\r\n400" + second + b"a" * 1024 + b"\r\n0" + last


@pytest.mark.parametrize("piece_bytes", [61, 1 << 20])
def test_the_documented_chunks_are_decoded(piece_bytes: int) -> None:
    decoder = _documented(
        SIGNED, {"content-length": "66824"}, "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    )
    body = _documented_body(
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    )
    assert _decode(decoder, body + b"\r\n", piece_bytes) == (b"a" * 66560, {})


@pytest.mark.parametrize(
    "end",
    [
        "x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:{}\r\n\r\n",
        "x-amz-checksum-crc32c:sOO8/Q==\n\r\nx-amz-trailer-signature:{}\r\n\r\n",  # as minio-go writes it
        "\r\nx-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:{}\r\n",  # as the page shows it
        "X-Amz-Checksum-Crc32c: sOO8/Q== \r\nX-Amz-Trailer-Signature: {}\r\n\r\n",
    ],
    ids=["lines", "minio", "page", "spaces"],
)
def test_the_documented_trailers_are_decoded(end: str) -> None:
    decoder = _documented(
        SIGNED_TRAILER,
        {"x-amz-trailer": "x-amz-checksum-crc32c"},
        "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
    )
    body = _documented_body(
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    )
    signature = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    decoded, trailers = _decode(decoder, body + end.format(signature).encode())
    checksums = Checksums(["crc32c"])
    checksums.update(decoded)
    assert trailers == {"x-amz-checksum-crc32c": checksums.base64("crc32c")}


class NoBody:
    """The body of an empty answer, as urllib3 has it."""

    def stream(self) -> list[bytes]:
        return []


@pytest.fixture(scope="module")
def boto() -> Iterator[tuple[Any, list[AWSPreparedRequest]]]:
    """A client that speaks TLS, so that it sends trailers, and the requests that it would send."""
    sent: list[AWSPreparedRequest] = []

    def keep(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        sent.append(request)
        return AWSResponse(request.url, 200, {}, NoBody())

    client = boto3.client(
        "s3",
        endpoint_url="https://s3.example.org",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    client.meta.events.register("before-send.s3.PutObject", keep)
    yield client, sent
    client.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_boto_sends_over_tls_is_decoded(boto: tuple[Any, list[AWSPreparedRequest]], algorithm: str) -> None:
    client, sent = boto
    content = bytes(range(256)) * 9000
    client.put_object(Bucket="b", Key="a b/+%", Body=content, ChecksumAlgorithm=algorithm.upper())
    request = sent.pop()
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in headers.items()}
    headers["host"] = urlsplit(request.url).netloc
    signed_at = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    raw = SignedRequest(
        "PUT",
        urlsplit(request.url).path.encode(),
        urlsplit(request.url).query.encode(),
        [(name.encode(), value.encode()) for name, value in headers.items()],
    )
    verified = verify(raw, [SECRET], int(signed_at.timestamp()) * 1000)
    assert verified.payload is PayloadKind.UNSIGNED_CHUNKS_TRAILER
    decoded, trailers = _decode(make_decoder(verified, headers), request.body.read(), 65_537)
    checksums = Checksums([algorithm])
    checksums.update(content)
    assert (decoded, trailers) == (content, {f"x-amz-checksum-{algorithm}": checksums.base64(algorithm)})


CHUNKS = [b"first" * 100, b"second", b"\r\n0\r\n\r\n"]
CONTENT = b"".join(CHUNKS)
CRC = {"x-amz-checksum-crc32": "AAAAAA=="}
UNSIGNED = b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n"


@pytest.mark.parametrize("piece_bytes", PIECES)
@pytest.mark.parametrize("trailers", [{}, CRC], ids=["none", "trailers"])
def test_chunks_are_decoded_however_they_arrive(trailers: dict[str, str], piece_bytes: int) -> None:
    decoder, seed = _decoder(SIGNED_TRAILER if trailers else SIGNED, len(CONTENT), *trailers)
    assert _decode(decoder, SIGNER.encode_chunks(seed, CHUNKS, trailers), piece_bytes) == (CONTENT, trailers)
    decoder, _ = _decoder(UNSIGNED_TRAILER, 11, *trailers)
    lines = "".join(f"{name}:{value}\r\n" for name, value in trailers.items()).encode()
    assert _decode(decoder, UNSIGNED + lines + b"\r\n", piece_bytes) == (b"firstsecond", trailers)


def test_an_empty_body_is_decoded() -> None:
    decoder, seed = _decoder(SIGNED, 0)
    assert _decode(decoder, SIGNER.encode_chunks(seed, [])) == (b"", {})


def _flip(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def test_no_byte_of_a_body_may_be_changed() -> None:
    """A bit of each is flipped, one after the other: a changed chunk and all behind it are never handed back."""
    trailers = CRC
    decoder, seed = _decoder(SIGNED_TRAILER, len(CONTENT), *trailers)
    body = SIGNER.encode_chunks(seed, CHUNKS, trailers)
    _decode(decoder, body)
    for at in range(len(body)):
        decoder, _ = _decoder(SIGNED_TRAILER, len(CONTENT), *trailers)
        decoded = b"".join(decoder.feed(_flip(body, at)[:at]))
        with pytest.raises(S3Error):
            _decode(decoder, _flip(body, at)[at:])
        assert decoded in [b"".join(CHUNKS[:number]) for number in range(4)], "a part of a chunk"
        with pytest.raises(S3Error):
            decoder.finish()


def test_the_order_and_number_of_chunks_are_signed() -> None:
    _, seed = _decoder(SIGNED, len(CONTENT))
    body = SIGNER.encode_chunks(seed, CHUNKS)
    begins = [body.index(b"1f4;"), body.index(b"6;"), body.index(b"7;"), body.rindex(b"0;")]
    first, second, third, end = (body[begin:until] for begin, until in zip(begins, [*begins[1:], None], strict=True))
    assert first + second + third + end == body
    for changed in (second + first + third + end, first + first + second + third + end, first + third + end, end):
        with pytest.raises(S3Error):
            _decode(_decoder(SIGNED, len(CONTENT))[0], changed)
    for cut in (first, first + second, first + second + third, body[:-3]):
        with pytest.raises(S3Error, match="ended before") as raised:
            _decode(_decoder(SIGNED, len(CONTENT))[0], cut)
        assert raised.value.code == "IncompleteBody"


def test_chunks_of_another_request_are_refused() -> None:
    _, seed = _decoder(SIGNED, len(CONTENT))
    other, _ = _decoder(SIGNED, len(CONTENT), **{"x-amz-meta-a": "b"})
    with pytest.raises(S3Error, match="signature of a chunk"):
        _decode(other, SIGNER.encode_chunks(seed, CHUNKS))


SIGNATURE = "0" * 64


@pytest.mark.parametrize(
    "line",
    [
        f"5;chunk-signature={SIGNATURE};a=b\r\n",
        f"5;a=b;chunk-signature={SIGNATURE}\r\n",
        f"5; chunk-signature={SIGNATURE}\r\n",
        f"5;chunk-signature={SIGNATURE[1:]}\r\n",
        f"5;chunk-signature={'A' * 64}\r\n",
        f"5;chunk-signature={SIGNATURE}\n",
        f"0x5;chunk-signature={SIGNATURE}\r\n",
        f"+5;chunk-signature={SIGNATURE}\r\n",
        f"-5;chunk-signature={SIGNATURE}\r\n",
        f"0_5;chunk-signature={SIGNATURE}\r\n",
        f" 5;chunk-signature={SIGNATURE}\r\n",
        f"{'0' * 20}5;chunk-signature={SIGNATURE}\r\n",
        f";chunk-signature={SIGNATURE}\r\n",
        "5\r\n",
        "\r\n",
        "5;" + "a" * 200,
    ],
)
def test_a_signed_chunk_begins_with_size_and_signature_alone(line: str) -> None:
    decoder, _ = _decoder(SIGNED, 5)
    with pytest.raises(S3Error, match="aws-chunked"):
        decoder.feed(line.encode())
    with pytest.raises(S3Error, match="refused before"):
        decoder.feed(b"first")


@pytest.mark.parametrize(
    "line", ["5;a=b\r\n", "5\n", "0x5\r\n", "5 \r\n", f"5;chunk-signature={SIGNATURE}\r\n", "g\r\n"]
)
def test_an_unsigned_chunk_begins_with_its_size_alone(line: str) -> None:
    with pytest.raises(S3Error, match="aws-chunked"):
        _decoder(UNSIGNED_TRAILER, 5)[0].feed(line.encode())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"5\r\nfirst\r\n7\r\n", "not as long"),
        (b"5\r\nfirst\r\n0\r\n", "not as long"),
        (b"ffffffffffffffff\r\n", "not as long"),
        (b"5\r\nfirst!\r\n", "longer or shorter"),
        (b"5\r\nfirs\r\n6\r\nsecond\r\n0\r\n\r\n", "longer or shorter"),
        (b"5\r\nfirst\n", "longer or shorter"),
        (UNSIGNED + b"\r\n\r\n", "Bytes follow"),
        (UNSIGNED + b"\r\nGET / HTTP/1.1\r\n\r\n", "Bytes follow"),
    ],
)
def test_sizes_must_be_those_that_were_announced(body: bytes, reason: str) -> None:
    with pytest.raises(S3Error, match=reason):
        _decode(_decoder(UNSIGNED_TRAILER, 11)[0], body)


def test_a_signed_chunk_has_a_largest_size() -> None:
    size_bytes = chunked_bodies.SIGNED_CHUNK_BYTES_MAX + 1
    decoder, _ = _decoder(SIGNED, size_bytes)
    with pytest.raises(S3Error, match="smaller ones"):
        decoder.feed(f"{size_bytes:x};chunk-signature={SIGNATURE}\r\n".encode())


@pytest.mark.parametrize(
    "lines",
    [
        "\r\n",
        "x-amz-checksum-sha1:AAAA\r\n\r\n",
        "x-amz-checksum-crc32:AAAAAA==\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n",
        "x-amz-checksum-crc32:AAAAAA==\r\nx-amz-checksum-sha1:AAAA\r\n\r\n",
        "x-amz-checksum-crc32:AAAAAA==\r\nx-amz-meta-a:b\r\n\r\n",
        "x-amz-checksum-crc32:AAAAAA==\r\nhost:b\r\n\r\n",
        f"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:{SIGNATURE}\r\n\r\n",
        "x-amz-checksum-crc32:AAAA AA==\r\n\r\n",
        "x-amz-checksum-crc32:AAAAAA==\r\n folded\r\n\r\n",
        "x-amz-checksum-crc32\r\n\r\n",
        "x-amz-checksum-crc32:\x00\r\n\r\n",
        "x-amz-checksum-crc32:" + "A" * 300 + "\r\n",
    ],
)
def test_trailers_are_those_that_were_announced_and_nothing_else(lines: str) -> None:
    decoder, _ = _decoder(UNSIGNED_TRAILER, 11, "x-amz-checksum-crc32")
    with pytest.raises(S3Error):
        _decode(decoder, UNSIGNED + lines.encode())


@pytest.mark.parametrize("line", [b"\r\n", b"\n", b"x"])
def test_trailers_end(line: bytes) -> None:
    """A client that never ends them is cut off, and holds no memory meanwhile."""
    decoder, seed = _decoder(SIGNED_TRAILER, 5, "x-amz-checksum-crc32")
    decoder.feed(SIGNER.encode_chunks(seed, [b"first"])[:-2])
    with pytest.raises(S3Error, match="too long"):
        _decode(decoder, line * (chunked_bodies.TRAILER_BYTES_MAX + 1), len(line))


def test_signed_trailers_need_their_signature() -> None:
    _, seed = _decoder(SIGNED_TRAILER, len(CONTENT), *CRC)
    body = SIGNER.encode_chunks(seed, CHUNKS, CRC)
    at = body.index(b"x-amz-trailer-signature")
    unsigned, signature = body[:at], body[at:]
    for changed in (
        unsigned,
        unsigned + b"\r\n",
        unsigned.replace(b"AAAAAA==", b"AAAAAQ==") + signature,
        body[: body.index(b"x-amz-checksum")] + signature,
        unsigned + signature[:-2] + b"x-amz-checksum-sha1:AAAA\r\n\r\n",
        unsigned + signature[:-2] + signature,
        unsigned + b"x-amz-trailer-signature:" + SIGNATURE.encode() + b"\r\n\r\n",
        unsigned + b"x-amz-trailer-signature:\xe9\r\n\r\n",
    ):
        with pytest.raises(S3Error):
            _decode(_decoder(SIGNED_TRAILER, len(CONTENT), *CRC)[0], changed)


@pytest.mark.parametrize(
    ("payload", "headers", "code"),
    [
        (SIGNED, {}, "MissingContentLength"),
        (SIGNED, {"x-amz-decoded-content-length": "-1"}, "InvalidArgument"),
        (SIGNED, {"x-amz-decoded-content-length": "1_0"}, "InvalidArgument"),
        (SIGNED, {"x-amz-decoded-content-length": "9" * 16}, "InvalidArgument"),
        (SIGNED, {"x-amz-decoded-content-length": "1", "x-amz-trailer": "x-amz-checksum-crc32"}, "InvalidRequest"),
        (SIGNED_TRAILER, {"x-amz-decoded-content-length": "1"}, "InvalidRequest"),
        (UNSIGNED_TRAILER, {"x-amz-decoded-content-length": "1", "x-amz-trailer": "authorization"}, "InvalidRequest"),
        (
            UNSIGNED_TRAILER,
            {"x-amz-decoded-content-length": "1", "x-amz-trailer": "x-amz-checksum-sha1, x-amz-checksum-sha1"},
            "InvalidRequest",
        ),
    ],
)
def test_what_is_announced_must_make_sense(payload: str, headers: dict[str, str], code: str) -> None:
    signed = SIGNER.sign("PUT", "/b/k", headers=headers, payload=payload)
    request = SignedRequest("PUT", b"/b/k", b"", [(name.encode(), value.encode()) for name, value in signed.items()])
    verified = verify(request, [SECRET], DOCUMENTED_MS)
    with pytest.raises(S3Error) as raised:
        make_decoder(verified, signed)
    assert raised.value.code == code
