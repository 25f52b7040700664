"""Sign requests to S3 as a client does, byte by byte, so that a test can send what no client would; shares no code with
the gateway.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

KEY_ID = "AKIA" + "IOSFODNN7EXAMPLE"  # the one of the S3 documentation, in two parts for those who look for secrets
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EMPTY = hashlib.sha256(b"").hexdigest()


class S3Signer(NamedTuple):
    """Who signs, when, and for where."""

    now_ms: int
    key_id: str = KEY_ID
    secret: str = SECRET
    region: str = "us-east-1"

    @property
    def timestamp(self) -> str:
        """The date as it is signed."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")

    @property
    def scope(self) -> str:
        """The scope as it is signed."""
        return f"{self.timestamp[:8]}/{self.region}/s3/aws4_request"

    def sign_text(self, *lines: str) -> str:
        """Sign these lines."""
        key = ("AWS4" + self.secret).encode()
        for part in self.scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()

    def sign(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        payload: str = EMPTY,
    ) -> dict[str, str]:
        """Return the headers with those of the signature. `path` and `query` are canonical already."""
        signed = {"host": "s3.example.org", "x-amz-content-sha256": payload, "x-amz-date": self.timestamp}
        signed.update(headers or {})
        signature = self.sign_text(*self._lines(method, path, query, signed, payload))
        fields = (
            f"Credential={self.key_id}/{self.scope}",
            f"SignedHeaders={';'.join(sorted(signed))}",
            f"Signature={signature}",
        )
        return {**signed, "authorization": f"AWS4-HMAC-SHA256 {', '.join(fields)}"}

    def presign(
        self,
        method: str,
        path: str,
        query: Sequence[str] = (),
        expires: str = "900",
        payload: str = "UNSIGNED-PAYLOAD",
    ) -> str:
        """Return the query of a presigned URL of `s3.example.org`. `query`: encoded pairs."""
        pairs = [
            *query,
            "X-Amz-Algorithm=AWS4-HMAC-SHA256",
            f"X-Amz-Credential={self.key_id}%2F{self.scope.replace('/', '%2F')}",
            f"X-Amz-Date={self.timestamp}",
            f"X-Amz-Expires={expires}",
            "X-Amz-SignedHeaders=host",
        ]
        text = "&".join(sorted(pairs, key=lambda pair: pair.split("=", 1)))
        lines = self._lines(method, path, text, {"host": "s3.example.org"}, payload)
        return f"{text}&X-Amz-Signature={self.sign_text(*lines)}"

    def encode_chunks(self, seed: str, chunks: Iterable[bytes], trailers: Mapping[str, str] | None = None) -> bytes:
        """Encode a body in signed chunks; the last, empty one and the trailers are added."""
        body = b""
        previous = seed
        for chunk in (*chunks, b""):
            hashed = hashlib.sha256(chunk).hexdigest()
            previous = self.sign_text(
                "AWS4-HMAC-SHA256-PAYLOAD", self.timestamp, self.scope, previous, f"{EMPTY}\n{hashed}"
            )
            body += f"{len(chunk):x};chunk-signature={previous}\r\n".encode() + chunk + (b"\r\n" if chunk else b"")
        if trailers:
            lines = "".join(f"{name}:{value}\n" for name, value in trailers.items())
            hashed = hashlib.sha256(lines.encode()).hexdigest()
            signature = self.sign_text("AWS4-HMAC-SHA256-TRAILER", self.timestamp, self.scope, previous, hashed)
            body += lines.replace("\n", "\r\n").encode() + f"x-amz-trailer-signature:{signature}\r\n".encode()
        return body + b"\r\n"

    def _lines(
        self, method: str, path: str, query: str, headers: Mapping[str, str], payload: str
    ) -> tuple[str, str, str, str]:
        names = sorted(headers)
        canonical = "\n".join(
            (method, path, query, *(f"{name}:{headers[name]}" for name in names), "", ";".join(names), payload)
        )
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        return "AWS4-HMAC-SHA256", self.timestamp, self.scope, hashed
