"""The machine with a real S3 client: what it uploads, copies, deletes and lists goes through the gateway, as do uploads
in parts. The rest is the SDK's beside, and so are the operations that run at once, step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import boto3.session
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from refstore.configuration.settings import ApiSettings, S3Settings
from refstore.errors import NotFound
from refstore.kv.base import KV
from refstore.kv.memory import MemoryKV
from refstore.objects.base import ObjectStore
from refstore.objects.memory import MemoryObjects
from refstore.service.access_keys import Role
from refstore_api.server import bind_socket
from refstore_http.principals import Principal
from refstore_http.request_metrics import RequestMetrics
from refstore_http.service import Service
from refstore_reaper.scrub import scrub_uploads
from refstore_s3 import signature_v4
from refstore_s3.authentication import AuthenticatedRequest
from refstore_s3.s3_application import S3Application
from refstore_s3.s3_requests import S3Request
from tests.properties.interleaving import Outcome
from tests.properties.machine import Machine, Step, clone
from tests.s3.served_gateway import KEY_ID, SECRET, running_application

UPLOAD_SECONDS = 5000.0
BETWEEN = ("nothing", "commit", "reset", "delete branch", "time")
LISTED_KEYS = 2
"""Of a page."""


class AuthenticationInRealTime:
    """Verify signatures as the gateway does, but by the clock of the client, not by that of the machine."""

    async def authenticate(self, request: S3Request, address: str) -> AuthenticatedRequest:
        now_ms = int(time.time() * 1000)
        verified = signature_v4.verify(request.to_sign, (SECRET,), now_ms)
        return AuthenticatedRequest(Principal(KEY_ID, Role.WRITER, (), now_ms), verified)


@dataclass
class OpenUpload:
    """An upload in parts that was begun."""

    branch: str
    path: str
    upload_id: str
    etag: str
    body: bytes
    ends_seconds: float
    may_be_open: bool = True
    may_be_over: bool = False


class GatewayMachine(Machine):
    COPIES_ONTO_ITSELF = True

    def open_kv(self) -> KV:
        return MemoryKV()

    def open_objects(self, url: str) -> ObjectStore:
        return MemoryObjects(name=url)

    @initialize()
    def start(self) -> None:
        super().start()
        self.uploads: list[OpenUpload] = []
        self.stack = ExitStack()
        api = ApiSettings()
        service = Service(self.lake, api)
        self.stack.callback(service.close)
        settings = S3Settings(multipart_seconds=UPLOAD_SECONDS)
        app = S3Application(service, settings, RequestMetrics(), AuthenticationInRealTime())
        listening = bind_socket("127.0.0.1", 0)
        host, port = listening.getsockname()
        self.stack.enter_context(running_application(app, api, listening))
        session: Any = boto3.session.Session(KEY_ID, SECRET, region_name="us-east-1")
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, proxies={})
        self.s3 = session.client("s3", endpoint_url=f"http://{host}:{port}", config=config)
        self.stack.callback(self.s3.close)
        self.bucket = str(self.repo.name)

    def finish(self) -> None:
        self.stack.close()

    # ---- the machine's operations, through the gateway

    def _upload(self, branch: str, path: str) -> Step:
        step = super()._upload(branch, path)
        body = b"%d" % self.count
        return self._through(step, lambda: self._ask(self.s3.put_object, branch, path, Body=body))

    def _delete(self, branch: str, path: str) -> Step:
        step = super()._delete(branch, path)
        return self._through(step, lambda: self._ask(self.s3.delete_object, branch, path))

    def _copy(self, source: str, path: str, branch: str, destination: str) -> Step:
        step = super()._copy(source, path, branch, destination)
        given = {"Bucket": self.bucket, "Key": f"{source}/{path}"}
        more = {"CopySource": given, "MetadataDirective": "REPLACE"}
        return self._through(step, lambda: self._ask(self.s3.copy_object, branch, destination, **more))

    def _through(self, step: Step, call: Callable[[], Any]) -> Step:
        """What runs at once with another operation is the SDK's: its steps are those that can be told apart."""
        return replace(step, call=lambda: step.call() if self.stepper.running else call())

    def _ask(self, method: Callable[..., Any], branch: str, path: str, **more: Any) -> Any:
        try:
            return method(Bucket=self.bucket, Key=f"{branch}/{path}", **more)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            raise NotFound(str(error)) from error

    # ---- what only S3 has

    @rule(branch=Machine.branches, items=st.lists(Machine.paths, min_size=1, max_size=4, unique=True))
    def delete_objects(self, branch: str, items: list[str]) -> None:
        if branch not in self.world:
            return
        named = [{"Key": f"{branch}/{path}"} for path in items]
        answer = self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": named})
        assert {each["Key"] for each in answer["Deleted"]} == {each["Key"] for each in named}
        assert "Errors" not in answer
        self.world[branch].staged |= dict.fromkeys(items)

    @rule(branch=Machine.branches, prefix=st.sampled_from(("", "a", "a/", "nothing")))
    def list_and_read(self, branch: str, prefix: str) -> None:
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{branch}/{prefix}", PaginationConfig={"PageSize": LISTED_KEYS}
        )
        names = [item["Key"] for page in pages for item in page.get("Contents", ())]
        view = self.world[branch].view() if branch in self.world else {}
        assert names == sorted(f"{branch}/{path}" for path in view if path.startswith(prefix))
        for name in names:
            body = self.s3.get_object(Bucket=self.bucket, Key=name)["Body"].read()
            assert body == view[name.removeprefix(f"{branch}/")]

    @rule(branch=Machine.branches, path=Machine.paths)
    def begin_upload(self, branch: str, path: str) -> None:
        if branch not in self.world:
            return
        body = self._body()
        upload_id = self._ask(self.s3.create_multipart_upload, branch, path)["UploadId"]
        part = self._ask(self.s3.upload_part, branch, path, UploadId=upload_id, PartNumber=1, Body=body)
        ends = self.clock.monotonic_seconds() + UPLOAD_SECONDS
        self.uploads.append(OpenUpload(branch, path, upload_id, part["ETag"], body, ends))

    @rule(choice=st.integers(0, 99), times=st.integers(1, 2))
    def complete_upload(self, choice: int, times: int) -> None:
        """The same completion again answers the same."""
        if not self.uploads:
            return
        upload = self.uploads.pop(choice % len(self.uploads))
        parts = {"Parts": [{"PartNumber": 1, "ETag": upload.etag}]}
        self._note_deadline(upload)
        etags: set[str] = set()
        for _ in range(times):
            try:
                more = {"UploadId": upload.upload_id, "MultipartUpload": parts}
                etags.add(self._ask(self.s3.complete_multipart_upload, upload.branch, upload.path, **more)["ETag"])
            except NotFound:
                assert not etags, "it was completed, and is not the second time"
                assert upload.may_be_over, "an open upload was refused"
                return
        assert len(etags) == 1
        assert upload.may_be_open, "an upload was completed that was over"
        self.world[upload.branch].staged[upload.path] = upload.body

    @rule(branch=Machine.branches, path=Machine.paths, between=st.sampled_from(BETWEEN))
    def upload_in_parts(self, branch: str, path: str, between: str) -> None:
        """Begin, let something happen that the upload outlives or not, and complete."""
        if branch not in self.world:
            return
        self.begin_upload(branch, path)
        if between == "commit":
            self.commit(branch)
        elif between == "reset":
            self.reset(branch)
        elif between == "delete branch":
            self.delete_branch(branch)
        elif between == "time":
            self.clock.advance(UPLOAD_SECONDS)
            self.reap()
        self.complete_upload(len(self.uploads) - 1, 2)

    @rule(choice=st.integers(0, 99))
    def abort_upload(self, choice: int) -> None:
        if not self.uploads:
            return
        upload = self.uploads.pop(choice % len(self.uploads))
        self._note_deadline(upload)
        try:
            self._ask(self.s3.abort_multipart_upload, upload.branch, upload.path, UploadId=upload.upload_id)
        except NotFound:
            assert upload.may_be_over, "an open upload could not be aborted"

    # ---- what ends uploads

    def _note_deadline(self, upload: OpenUpload) -> None:
        if self.clock.monotonic_seconds() >= upload.ends_seconds:
            upload.may_be_open, upload.may_be_over = False, True

    def _one(self, step: Step) -> None:
        happens = step.effect(clone(self.world))
        super()._one(step)
        if happens and step.label in (f"reset {step.branch}", f"delete branch {step.branch}"):
            for upload in self._uploads_of(step.branch):
                upload.may_be_open, upload.may_be_over = False, True

    def _reconcile(self, steps: list[Step], outcomes: list[Outcome]) -> None:
        super()._reconcile(steps, outcomes)
        for step in steps:
            if step.label.startswith(("reset", "delete branch")):
                for upload in self._uploads_of(step.branch):
                    upload.may_be_over = True

    def _uploads_of(self, branch: str) -> list[OpenUpload]:
        return [upload for upload in self.uploads if upload.branch == branch]

    def _settle(self) -> None:
        super()._settle()
        for _ in range(3):
            scrub_uploads(self.repo.context)
            self.clock.advance(UPLOAD_SECONDS)
        assert not list(self.repo.context.uploads.scan()), "an upload is registered that is over for long"
