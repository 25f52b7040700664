"""Refuse headers that ask for what is not there. Their clients rely on it, so none is ignored."""

from __future__ import annotations

from typing import Final

from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request

PREFIXES: Final = (
    "x-amz-copy-source-server-side-encryption",
    "x-amz-grant-",
    "x-amz-object-lock-",
    "x-amz-server-side-encryption",
)
NAMES: Final = frozenset(
    {
        "x-amz-expected-bucket-owner",
        "x-amz-mfa",
        "x-amz-source-expected-bucket-owner",
        "x-amz-website-redirect-location",
        "x-amz-write-offset-bytes",
    }
)
HARMLESS: Final = {
    "x-amz-acl": frozenset({"", "private", "bucket-owner-full-control", "bucket-owner-read"}),
    "x-amz-bucket-object-lock-enabled": frozenset({"", "false", "False"}),
    "x-amz-storage-class": frozenset({"", "STANDARD"}),
}
"""Headers with values that ask for no more than is true anyway."""


def refuse_headers(request: S3Request) -> None:
    """Raises S3Error."""
    for name, value in request.headers.items():
        is_refused = value not in HARMLESS[name] if name in HARMLESS else name in NAMES or name.startswith(PREFIXES)
        if is_refused:
            raise S3Error("NotImplemented", f"{name} is not supported; leave it out", fields={"Header": name})
