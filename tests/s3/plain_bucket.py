"""A bucket without refs in its keys, made by CreateBucket: the S3 API reference knows no other."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tests.s3.served_gateway import ServedGateway

SPECIAL_KEYS: Final = (
    "a b", "a+b", "a%20b", "a%2Fb", "a%", "a?b=c", "a#b", "a&b;c", "a//b", "a\\b", "a:b@c", "~a!*'()", 'a"b', "<a>",
    "folder/", " edge ", "é/日本", "\U0001f600", "line\nbreak", "tab\tstop", "bell\x07", "x" * 1024,
)  # fmt: skip
"""Keys with what URLs, XML, headers and file systems give a meaning of their own."""


class PlainBucket(NamedTuple):
    gateway: ServedGateway
    client: Any
    name: str

    def at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.name, "Key": key}

    def put(self, key: str, body: bytes = b"", **options: Any) -> Any:
        return self.client.put_object(**self.at(key), Body=body, **options)

    def read(self, key: str, **options: Any) -> bytes:
        body: bytes = self.client.get_object(**self.at(key), **options)["Body"].read()
        return body

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [row["Key"] for page in pages for row in page.get("Contents", ())]
