"""Hold what the handlers of the gateway share: the service over the lake, the settings, and the buckets."""

from __future__ import annotations

from refstore.configuration.settings import S3Settings
from refstore_http.service import Service
from refstore_s3.bucket_lookup import BucketLookup


class Gateway:
    def __init__(self, service: Service, settings: S3Settings) -> None:
        self.service = service
        self.settings = settings
        self.buckets = BucketLookup(service, settings)
