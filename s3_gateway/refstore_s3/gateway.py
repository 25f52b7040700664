"""Hold what the handlers of the gateway share: the service over the lake, the settings, and the buckets."""

from __future__ import annotations

from typing import Final

from refstore.configuration.settings import S3Settings
from refstore_api.expensive_reads import ReadSlots
from refstore_api.service import Service
from refstore_s3.bucket_lookup import BucketLookup

LARGE_DOCUMENTS_MAX: Final = 8
"""Large documents of clients that a process holds at a time; of one access key half of them. To hold and parse one of
the largest takes some 30 MiB.
"""


class Gateway:
    def __init__(self, service: Service, settings: S3Settings) -> None:
        self.service = service
        self.settings = settings
        self.buckets = BucketLookup(service, settings)
        self.document_slots = ReadSlots(LARGE_DOCUMENTS_MAX, LARGE_DOCUMENTS_MAX // 2)
