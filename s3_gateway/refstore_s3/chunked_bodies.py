"""Decode bodies in the encoding `aws-chunked`: signed chunks, unsigned chunks, and trailers behind them, signed or not.

A decoder is fed what arrives and hands back what is decoded. Nothing of a signed chunk is handed back before its
signature holds. Whoever stores a body calls `finish` before it counts: only then length, end and trailers are known.

https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from refstore_s3.checksums import ALGORITHMS, HEADER_PREFIX
from refstore_s3.s3_errors import S3Error
from refstore_s3.signature_v4 import ChunkSigner, PayloadKind, VerifiedRequest

SIGNED_CHUNK_BYTES_MAX: Final = 1 << 20
"""The largest signed chunk: it waits in memory until its signature holds. Clients send 64 KiB to 1 MiB."""
CHUNK_LINE_BYTES_MAX: Final = 128
TRAILER_BYTES_MAX: Final = 4 << 10
LENGTH_HEADER: Final = "x-amz-decoded-content-length"
TRAILER_HEADER: Final = "x-amz-trailer"
TRAILERS: Final = frozenset(HEADER_PREFIX + algorithm for algorithm in ALGORITHMS)
"""The trailers that S3 has."""
_SIGNATURE_TRAILER: Final = "x-amz-trailer-signature"
_UNSIGNED_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_SIGNED_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16});chunk-signature=([0-9a-f]{64})\r\n")
_TRAILER_LINE: Final = re.compile(rb"([a-z0-9-]{1,64})[ \t]*:[ \t]*([\x21-\x7e]{0,256})[ \t]*\r?\n", re.IGNORECASE)
_LENGTH: Final = re.compile(r"\d{1,15}", re.ASCII)


class _State(Enum):
    CHUNK_LINE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    END = auto()
    FAILED = auto()


class ChunkDecoder:
    """Decode one body."""

    def __init__(
        self, kind: PayloadKind, signer: ChunkSigner | None, size_bytes: int, trailers: frozenset[str]
    ) -> None:
        """`size_bytes`: of the decoded body, as the client has announced it. `trailers`: the names it has announced."""
        self._signer = signer
        self.announced = trailers
        """The names of the trailers that must come."""
        self._has_trailers = kind is not PayloadKind.SIGNED_CHUNKS
        self._left_bytes = size_bytes
        """Of the whole body."""
        self._state = _State.CHUNK_LINE
        self._line = bytearray()
        self._chunk_left_bytes = 0
        self._chunk_signature = ""
        self._chunk_sha256 = hashlib.sha256()
        self._chunk = bytearray()
        """What has come of a signed chunk: one array, because a client may send single bytes."""
        self._trailer_bytes = 0
        self._trailers: dict[str, str] = {}
        self._signed_trailers = hashlib.sha256()
        self._trailers_hold = signer is None

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the body, and return what is decoded; raise an `S3Error` at the first fault."""
        state, self._state = self._state, _State.FAILED  # until all of `data` was good
        decoded: list[bytes] = []
        at = 0
        while at < len(data):
            match state:
                case _State.CHUNK:
                    piece = data[at : at + self._chunk_left_bytes]
                    at += len(piece)
                    self._chunk_left_bytes -= len(piece)
                    self._take_piece(piece, decoded)
                    state = _State.CHUNK if self._chunk_left_bytes else _State.CHUNK_END
                case _State.CHUNK_LINE | _State.CHUNK_END | _State.TRAILERS:
                    end = data.find(b"\n", at) + 1 or len(data)
                    self._line += data[at:end]
                    at = end
                    if len(self._line) > (TRAILER_BYTES_MAX if state is _State.TRAILERS else CHUNK_LINE_BYTES_MAX):
                        raise _malformed_body("A line between the chunks is too long.")
                    if self._line.endswith(b"\n"):
                        line = bytes(self._line)
                        self._line.clear()
                        state = self._take_line(state, line, decoded)
                case _State.END:
                    raise _malformed_body("Bytes follow its end.")
                case _State.FAILED:
                    raise _malformed_body("It was refused before.")
        self._state = state
        return decoded

    def finish(self) -> dict[str, str]:
        """Return the trailers; raise an `S3Error` if the body has not come to its end."""
        if self._state is _State.TRAILERS and not self._line and self._has_all_trailers():
            self._state = _State.END  # the empty line is left out by some; nothing can hide behind it
        if self._state is not _State.END:
            raise S3Error("IncompleteBody", "The body ended before its last chunk and trailers. Send it again.")
        return self._trailers

    def _take_piece(self, piece: bytes, decoded: list[bytes]) -> None:
        if self._signer is None:
            decoded.append(piece)
        else:
            self._chunk_sha256.update(piece)
            self._chunk += piece

    def _take_line(self, state: _State, line: bytes, decoded: list[bytes]) -> _State:
        if state is _State.CHUNK_LINE:
            return self._begin_chunk(line)
        if state is _State.CHUNK_END:
            if line != b"\r\n":
                raise _malformed_body("A chunk is longer or shorter than it says.")
            self._check_chunk()
            if self._chunk:
                decoded.append(bytes(self._chunk))
                self._chunk.clear()
            return _State.CHUNK_LINE
        return self._take_trailer(line)

    def _begin_chunk(self, line: bytes) -> _State:
        matched = (_UNSIGNED_LINE if self._signer is None else _SIGNED_LINE).fullmatch(line)
        if matched is None:
            raise _malformed_body(
                "A chunk must begin with its size in hexadecimal digits, and its signature if it has one."
            )
        size_bytes = int(matched[1], 16)
        if self._signer is not None:
            self._chunk_signature = matched[2].decode("ascii")
            self._chunk_sha256 = hashlib.sha256()
            if size_bytes > SIGNED_CHUNK_BYTES_MAX:
                raise S3Error(
                    "InvalidRequest", f"A signed chunk may have {SIGNED_CHUNK_BYTES_MAX} bytes. Send smaller ones."
                )
        if size_bytes > self._left_bytes or (not size_bytes and self._left_bytes):
            raise S3Error("IncompleteBody", f"The body is not as long as the header {LENGTH_HEADER} says.")
        self._left_bytes -= size_bytes
        self._chunk_left_bytes = size_bytes
        if size_bytes:
            return _State.CHUNK
        self._check_chunk()
        return _State.TRAILERS

    def _check_chunk(self) -> None:
        signer = self._signer
        if signer is not None and not signer.matches_chunk(self._chunk_sha256.hexdigest(), self._chunk_signature):
            raise S3Error("SignatureDoesNotMatch", "The signature of a chunk does not match its bytes. Send it again.")

    def _take_trailer(self, line: bytes) -> _State:
        """Take a line behind the last chunk. Some clients send an empty line before the trailers' signature, too."""
        self._trailer_bytes += len(line)
        if self._trailer_bytes > TRAILER_BYTES_MAX:
            raise _malformed_body("Its trailers are too long.")
        if line in (b"\r\n", b"\n"):
            if not self._has_trailers or self._trailers_hold:
                if not self._has_all_trailers():
                    raise _malformed_trailer(f"It must have those that the header {TRAILER_HEADER} names.")
                return _State.END
            return _State.TRAILERS
        matched = _TRAILER_LINE.fullmatch(line)
        if matched is None or not self._has_trailers:
            raise _malformed_trailer("It must be lines of NAME:VALUE.")
        name, value = matched[1].decode("ascii").lower(), matched[2].decode("ascii")
        if name == _SIGNATURE_TRAILER and self._signer is not None and not self._trailers_hold:
            if not self._signer.matches_trailers(self._signed_trailers.hexdigest(), value):
                raise S3Error("SignatureDoesNotMatch", "The signature of the trailers does not match. Send it again.")
            self._trailers_hold = True
        elif (
            name in self.announced and name not in self._trailers and (self._signer is None or not self._trailers_hold)
        ):
            self._trailers[name] = value
            self._signed_trailers.update(f"{name}:{value}\n".encode())
        else:
            raise _malformed_trailer(f"It has {name!r} twice, or the header {TRAILER_HEADER} does not name it.")
        return _State.TRAILERS

    def _has_all_trailers(self) -> bool:
        if not self._has_trailers:
            return True
        return self._trailers_hold and self._trailers.keys() == self.announced


def make_decoder(verified: VerifiedRequest, headers: Mapping[str, str]) -> ChunkDecoder:
    """Return the decoder of a request whose signature holds and whose payload is chunked."""
    announced = headers.get(LENGTH_HEADER)
    if announced is None:
        raise S3Error("MissingContentLength", f"A body in chunks needs the header {LENGTH_HEADER}.")
    if not _LENGTH.fullmatch(announced):
        raise S3Error("InvalidArgument", f"The header {LENGTH_HEADER} must be a number of bytes.")
    names = [name.strip().lower() for name in headers.get(TRAILER_HEADER, "").split(",") if name.strip()]
    trailers = frozenset(names)
    if len(names) != len(trailers) or not trailers <= TRAILERS:
        raise S3Error(
            "InvalidRequest", f"The header {TRAILER_HEADER} may name {', '.join(sorted(TRAILERS))}, each once."
        )
    if trailers and verified.payload is PayloadKind.SIGNED_CHUNKS:
        raise S3Error("InvalidRequest", f"x-amz-content-sha256 announces no trailers, and {TRAILER_HEADER} does.")
    if not trailers and verified.payload is PayloadKind.SIGNED_CHUNKS_TRAILER:
        raise S3Error("InvalidRequest", f"x-amz-content-sha256 announces trailers, and {TRAILER_HEADER} names none.")
    return ChunkDecoder(verified.payload, verified.chunk_signer, int(announced), trailers)


def _malformed_body(reason: str) -> S3Error:
    return S3Error("InvalidRequest", f"The body is not in the encoding aws-chunked. {reason}")


def _malformed_trailer(reason: str) -> S3Error:
    return S3Error("MalformedTrailerError", f"The trailer of the body cannot be read. {reason}")
