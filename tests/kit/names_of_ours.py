"""Names of ours that a caller may try to give in metadata, each as one that something once read."""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "s3:etag",
    "s3:parts",
    "s3:checksum-crc32",
    "s3:checksum-type",
    "s3:checksum-parts",
    "s3:tags",
    "s3:cache-control",
    "s3:upload-algorithm",
    "s3:created-bucket",
    "S3:ETag",
    "refstore.purge",
    "refstore.skipped",
    "refstore.rule",
    "Refstore.Transaction",
)

ATTACK: Final = {"s3:parts": ",".join(["9999x0"] * 1160)}
"""8 KiB that stood for 11 million parts."""
