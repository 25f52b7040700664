"""The boto3 client of one bucket: how it is created, and how its exceptions become refstore's errors.

boto3 is imported here only. The limits set here hold for every request: it ends within `io_timeout_seconds`, retries
included. So after the deadline of an operation, its last write lands within that time.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from hashlib import file_digest, md5
from typing import TYPE_CHECKING, Any, Final, cast

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError
from botocore.utils import parse_timestamp

from refstore.errors import InvalidPath, InvalidSettings, ObjectsRefused, ObjectsUnavailable, RefstoreError
from refstore.objects.object_keys import KEY_BYTES_MAX, check_key
from refstore.objects.s3.errors import USUAL_RIGHTS, ServerError, translate_server_error

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

    from refstore.objects.store_urls import StoreURL

FAILURES: Final = (ClientError, BotoCoreError, ResponseParserError)
"""All that botocore raises. The error for an answer that cannot be parsed has no common base class with the others."""
CONCURRENT_REQUESTS: Final = 4
"""Bulk deletes or taggings that run at once: enough to hide the round trip, few enough that the server does not answer
SlowDown.
"""
_ANSWERS: Final = {
    "DeleteObjects": b"DeleteResult",
    "ListObjectsV2": b"ListBucketResult",
    "CreateMultipartUpload": b"InitiateMultipartUpload",  # rclone leaves out the "Result" that AWS has here
    "CompleteMultipartUpload": b"CompleteMultipartUpload",
}
"""The document that confirms each operation. Without this check, boto reads an empty 200, or a proxy's page, as a
confirmation without errors.
"""
_WITH_ETAG: Final = ("PutObject", "UploadPart", "HeadObject")
"""Operations that are confirmed by an ETag, and by no document."""
_WITH_CONTENT: Final = ("PutObject", "UploadPart")
_PAYLOAD_UNSIGNED: Final = Config(s3={"payload_signing_enabled": False})
_ATTEMPTS: Final = 3
_PAUSES_SECONDS: Final = 3.0
"""The most that boto's standard mode waits between three attempts: 1 and 2 seconds."""


_inherited_clients: Final[list[S3Client]] = []
"""Clients of a parent process. They are kept so that they are never closed here: closing a TLS connection would end the
parent's.
"""


class Bucket:
    """A bucket, the prefix in it that is the namespace, and the client for it."""

    def __init__(self, make_client: Callable[[], S3Client], name: str, prefix: str, url: str) -> None:
        self._make_client = make_client
        self._client = make_client()
        self._pid = os.getpid()
        self.name = name
        self.prefix = f"{prefix}/" if prefix else ""
        self.url = url
        self.seen = False
        """Whether the server has confirmed that the bucket exists. After that, a bare 404 can only mean the object."""

    @property
    def client(self) -> S3Client:
        """The client of this process. A forked child makes its own: on a connection that it shares with its parent, one
        of both would read the answer to the other's request.
        """
        if self._pid != os.getpid():
            _inherited_clients.append(self._client)
            self._client, self._pid = self._make_client(), os.getpid()
        return self._client

    def full_key(self, key: str) -> str:
        """Return the complete key in the bucket. Raises InvalidPath."""
        check_key(key)
        full = self.prefix + key
        if len(full) > KEY_BYTES_MAX or (not full.isascii() and len(full.encode()) > KEY_BYTES_MAX):
            raise InvalidPath(
                f"{key[:80]!r} and the store's prefix have over {KEY_BYTES_MAX} bytes together; use a shorter one"
            )
        return full

    @contextmanager
    def translate_errors(self, doing: str, needs: str = USUAL_RIGHTS) -> Generator[None, None, None]:
        """Translate boto's exceptions inside the block. `doing` says what is tried ("writing 'a/b'") and starts the
        message. `needs`: the permissions that it takes.
        """
        try:
            yield
        except FAILURES as error:
            raise self.translate_error(error, doing, needs) from error

    def translate_error(self, error: Exception, doing: str, needs: str = USUAL_RIGHTS) -> RefstoreError:
        what = f"{doing} in {self.url}"
        if isinstance(error, ClientError):
            return translate_server_error(parse_server_error(error), what, needs)
        if isinstance(error, NoCredentialsError | PartialCredentialsError | ProfileNotFound):
            return ObjectsRefused(
                f"{what} failed: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile that has them"
            )
        if isinstance(error, ParamValidationError):
            return InvalidSettings(f"{what} failed: {error}; correct the URL")
        return ObjectsUnavailable(
            f"{what} failed: {error}; check that the server runs and can be reached, then try again"
        )


def parse_server_error(error: ClientError) -> ServerError:
    # The stub promises fields that servers other than AWS leave out.
    answer = cast("dict[str, dict[str, Any]]", error.response)
    details = answer.get("Error", {})
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return ServerError(str(details.get("Code") or status), status, str(details.get("Message") or ""))


def make_client(url: StoreURL, io_timeout_seconds: float) -> S3Client:
    """Create the client of a bucket. Raises InvalidSettings. Connects to no server yet."""
    endpoint = url.options.get("endpoint")
    attempt_seconds = max(1.0, io_timeout_seconds - _PAUSES_SECONDS) / _ATTEMPTS
    config = Config(
        signature_version="s3v4",
        connect_timeout=attempt_seconds / 5,
        read_timeout=attempt_seconds * 4 / 5,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=4 * CONCURRENT_REQUESTS,
        # boto3 adds checksums to all requests by default. Other servers refuse them, or store them as part of the body.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
    )
    try:
        core = botocore.session.Session(profile=url.options.get("profile"))
        core.register_component("data_loader", _loader())
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
        region = core.get_config_variable("region") or ("us-east-1" if endpoint else None)
        in_profile = cast("dict[str, Any]", core.get_scoped_config().get("s3") or {})
        style = in_profile.get("addressing_style") or ("path" if endpoint else "auto")
        config = config.merge(Config(s3={"addressing_style": style}))
        # Any: its stub knows only services whose stubs are not installed.
        session = cast("Any", boto3.session.Session(botocore_session=core))
        client = cast("S3Client", session.client("s3", endpoint_url=endpoint, region_name=region, config=config))
    except (BotoCoreError, ValueError) as error:
        raise InvalidSettings(
            f"{url.text()} cannot be opened: {error}; correct the URL or the AWS configuration"
        ) from error
    client.meta.events.register("before-call.s3.DeleteObjects", _add_md5)
    for operation in _WITH_CONTENT:
        client.meta.events.register(f"before-call.s3.{operation}", _sign_by_md5)
    for operation in _ANSWERS:
        client.meta.events.register(f"before-parse.s3.{operation}", _refuse_other_answers)
    for operation in _WITH_ETAG:
        client.meta.events.register(f"before-parse.s3.{operation}", _refuse_without_etag)
    return client


def _parse_time(value: Any) -> datetime:
    """Parse a time in an answer. botocore guesses its form, which takes more than half of the time of a listing."""
    if isinstance(value, str) and value.endswith("Z"):
        with suppress(ValueError):
            return datetime.fromisoformat(value)
    return parse_timestamp(value)


def _refuse_other_answers(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """Turn a 200 without the operation's own document into a server error, which is retried. botocore treats an error
    inside a 200 in the same way (`_handle_200_error`).
    """
    if (
        response_dict["status_code"] == 200
        and _ANSWERS[operation_model.name] not in response_dict["body"].lstrip()[:512]
    ):
        response_dict["status_code"] = 500


def _refuse_without_etag(response_dict: dict[str, Any], **_: object) -> None:
    """Turn a 200 without an ETag into a server error: it does not say which version is stored."""
    if response_dict["status_code"] == 200 and "ETag" not in response_dict["headers"]:
        response_dict["status_code"] = 500


@cache
def _loader() -> Loader:
    """Return the loader that all clients share. It keeps the parsed description of the API, which takes 12 MB and a
    tenth of a second.
    """
    return create_loader()


def _add_md5(params: dict[str, Any], **_: object) -> None:
    """Add Content-MD5, by which servers check a body. Older ones do not know the checksum that boto sends."""
    body = params["body"]
    if isinstance(body, bytes):
        digest = md5(body, usedforsecurity=False)
    else:
        digest = file_digest(body, partial(md5, usedforsecurity=False))
        body.seek(0)
    params["headers"]["Content-MD5"] = base64.b64encode(digest.digest()).decode()


def _sign_by_md5(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    """Sign an object's content by its Content-MD5, not by its SHA-256: not all servers check that one, and those that
    do hash the body once more for it, as botocore does. A botocore that did not send this event would sign as before.
    """
    if "Content-MD5" not in params["headers"]:
        _add_md5(params)
    context["client_config"] = context["client_config"].merge(_PAYLOAD_UNSIGNED)
