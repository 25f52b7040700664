"""A client process of the storm that writes through the S3 gateway with boto3, and a ledger of what it was told.

What S3 has no call for (commit, reset, move, branches, links), it does with the SDK beside the gateway, so that staging
tokens are sealed and reset while S3 requests are under way.

A request of a killed client goes on in the gateway, and may land behind the first ones of the next. So each life of a
client has paths of its own.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from refstore.errors import Corrupt, OutcomeUnknown, RefstoreError
from refstore.operations.complete_upload import PART_BYTES_MIN
from refstore.operations.upload import Upload
from refstore.repository import Repository
from tests.soak import ledgers
from tests.soak.client import OWN_PATHS, Client, run_client
from tests.soak.gateway import make_s3_client, read_access
from tests.soak.ledgers import COUNTED, COUNTED_PATH

AT_ONCE: Final = 4
PAUSE_SECONDS: Final = 0.5
"""After a request without an answer. The gateway was killed, or is not back yet; what it had sent lands meanwhile."""
IS_MD5: Final = re.compile('"[0-9a-f]{32}"').fullmatch
COMPLETIONS: Final = 4
"""How often a completion is asked for until it is answered."""
ANSWERS_AGAIN_SECONDS: Final = 8.0
"""For how long a completion that had landed answers the same, at the least: as long as operations may take."""


class Part(NamedTuple):
    number: int
    etag: str


class GatewayRepository:
    """A repository whose objects are put, copied and deleted through the gateway; the rest is the SDK's."""

    def __init__(self, repo: Repository, s3: Any) -> None:
        self._repo = repo
        self._s3 = s3
        self.pool = ThreadPoolExecutor(AT_ONCE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repo, name)

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Raises RefstoreError, with the code of S3 that was answered; OutcomeUnknown: nothing was."""
        try:
            return getattr(self._s3, operation)(Bucket=str(self._repo.name), **arguments)
        except ClientError as error:
            raise make_error(error.response) from error
        except (BotoCoreError, ResponseParserError) as error:
            time.sleep(PAUSE_SECONDS)
            raise OutcomeUnknown(f"the gateway did not answer ({error!r})") from error

    def upload(self, branch: str, path: str, body: bytes, **conditions: str) -> None:
        self.call("put_object", Key=f"{branch}/{path}", Body=body, **conditions)

    def upload_many(self, branch: str, uploads: Sequence[Upload]) -> None:
        uploading = [self.pool.submit(self.upload, branch, item.path, cast("bytes", item.body)) for item in uploads]
        wait(uploading)  # none may land behind the client's next call
        errors = [error for each in uploading if (error := each.exception()) is not None]
        if errors:
            raise OutcomeUnknown(f"{len(errors)} of {len(uploads)} failed: {errors[0]}") from errors[0]

    def delete(self, branch: str, path: str) -> None:
        self.call("delete_object", Key=f"{branch}/{path}")

    def delete_prefix(self, branch: str, prefix: str) -> None:
        found = self.call("list_objects_v2", Prefix=f"{branch}/{prefix}").get("Contents", [])
        if found:
            self.delete_keys([item["Key"] for item in found])

    def delete_keys(self, keys: Sequence[str]) -> None:
        answer = self.call("delete_objects", Delete={"Objects": [{"Key": key} for key in keys]})
        for error in answer.get("Errors", []):
            raise OutcomeUnknown(f"not all was deleted: {error}")

    def copy(self, source: str, path: str, *, to_branch: str, to_path: str) -> None:
        self.call("copy_object", Key=f"{to_branch}/{to_path}", CopySource=self.source_of(source, path))

    def source_of(self, ref: str, path: str) -> dict[str, str]:
        return {"Bucket": str(self._repo.name), "Key": f"{ref}/{path}"}

    def read(self, branch: str, path: str) -> tuple[bytes, str]:
        """Return the object and its ETag."""
        answer = self.call("get_object", Key=f"{branch}/{path}")
        try:
            return answer["Body"].read(), answer["ETag"]
        except BotoCoreError as error:
            raise OutcomeUnknown(f"the answer broke off ({error!r})") from error


def make_error(answer: Mapping[str, Any]) -> RefstoreError:
    told = answer["Error"]
    error = RefstoreError(f"{told['Code']}: {told.get('Message', '')}")
    error.code = told["Code"]
    error.retryable = answer["ResponseMetadata"]["HTTPStatusCode"] >= 500
    return error


class S3Client(Client):
    def __init__(self, repo: Repository, name: str, seed: int, ledger: int) -> None:
        self.gateway = GatewayRepository(repo, make_s3_client(read_access(Path(sys.argv[6]))))
        super().__init__(cast("Repository", self.gateway), name, seed, ledger)
        self.own_paths = [f"{path}-{seed}" for path in OWN_PATHS]

    def own_operations(self) -> list[Callable[[], None]]:
        more = [self.upload_in_parts, self.upload_in_parts, self.put_if_absent, self.put_if_match, self.delete_several]
        return [*super().own_operations(), *more, self.read]

    def shared_operations(self) -> list[Callable[[], None]]:
        more = [
            self.shared_upload_in_parts, self.shared_upload_in_parts, self.leave_upload_open, self.abort_upload,
            self.shared_put_if_absent, self.shared_put_if_match, self.increment, self.increment, self.commit_counted,
        ]  # fmt: skip
        return [*super().shared_operations(), *more]

    # ---- alone

    def upload_in_parts(self) -> None:
        path, contents = self.random.choice(self.own_paths), self.part_bodies()
        is_conditional = self.random.random() < 0.3
        self.op(
            "upload in parts",
            lambda: self.write_and_complete(self.name, path, contents, if_absent=is_conditional),
            to={path: ledgers.describe(b"".join(contents))},
            if_absent=path if is_conditional else None,
        )

    def put_if_absent(self) -> None:
        path, body = self.random.choice(self.own_paths), self.body()
        self.op(
            "put if absent",
            lambda: self.gateway.upload(self.name, path, body.encode(), IfNoneMatch="*"),
            to={path: body},
            if_absent=path,
        )

    def put_if_match(self) -> None:
        path, body = self.random.choice(self.own_paths), self.body()
        self.op("put if match", lambda: self.replace(self.name, path, body), to={path: body})

    def replace(self, branch: str, path: str, body: str) -> None:
        etag = self.gateway.call("head_object", Key=f"{branch}/{path}")["ETag"]
        self.gateway.upload(branch, path, body.encode(), IfMatch=etag)

    def delete_several(self) -> None:
        paths = self.random.sample(self.own_paths, 3)
        self.op("delete several", lambda: self.gateway.delete_keys([f"{self.name}/{p}" for p in paths]), gone=paths)

    def read(self) -> None:
        def check() -> None:
            body, etag = self.gateway.read(self.name, path)
            if IS_MD5(etag) and hashlib.md5(body, usedforsecurity=False).hexdigest() != etag.strip('"'):
                raise Corrupt(f"{path} of {self.name} was read as {len(body)} bytes that are not those of {etag}")

        path = self.random.choice(self.own_paths)
        self.op("read", check)

    # ---- among others

    def shared_upload_in_parts(self) -> None:
        (branch, path), contents = self.place(), self.part_bodies()
        is_conditional = self.random.random() < 0.3
        copied = self.random.choice(self.own_paths) if self.random.random() < 0.3 else None
        self.op(
            "shared upload in parts",
            lambda: self.write_and_complete(branch, path, contents, if_absent=is_conditional, copied=copied),
        )

    def leave_upload_open(self) -> None:
        (branch, path), contents = self.place(), self.part_bodies()
        self.op(
            "leave an upload open", lambda: self.write_parts(self.random.choice([branch, self.name]), path, contents)[0]
        )

    def abort_upload(self) -> None:
        (branch, path), contents = self.place(), self.part_bodies()

        def begin_and_abort() -> None:
            upload, _ = self.write_parts(branch, path, contents)
            self.gateway.call("abort_multipart_upload", Key=f"{branch}/{path}", UploadId=upload)

        self.op("abort an upload", begin_and_abort)

    def shared_put_if_absent(self) -> None:
        (branch, path), body = self.place(), self.body()
        put = partial(self.gateway.upload, branch, path, body.encode(), IfNoneMatch="*")
        self.op("shared put if absent", put)

    def shared_put_if_match(self) -> None:
        (branch, path), body = self.place(), self.body()
        self.op("shared put if match", lambda: self.replace(branch, path, body))

    def increment(self) -> None:
        """Replace a number by the next one, several at once. Nobody changes it otherwise, so no two are told that they
        wrote the same.
        """
        body = self.body()

        def race() -> str:
            adding = [self.gateway.pool.submit(self.add_one, f"{body} {number}") for number in range(AT_ONCE)]
            wait(adding)
            written = [str(each.result()) for each in adding if each.exception() is None]
            return " ".join(written) or str(adding[0].result())

        self.op("increment", race)

    def add_one(self, text: str) -> int:
        try:
            body, etag = self.gateway.read(COUNTED, COUNTED_PATH)
            number, condition = int(body.split()[0]) + 1, {"IfMatch": etag}
        except RefstoreError as error:
            if error.code != "NoSuchKey":
                raise
            number, condition = 1, {"IfNoneMatch": "*"}
        self.gateway.upload(COUNTED, COUNTED_PATH, f"{number} {text}".encode(), **condition)
        return number

    def commit_counted(self) -> None:
        self.op("commit counted", lambda: self.repo.commit(COUNTED, self.life).id)

    # ---- uploads in parts

    def part_bodies(self) -> list[bytes]:
        """Return the contents of one to three parts. Most are single, because others are large."""
        text = f"{self.body()} "
        large = self.random.choice([0, 0, 0, 1, 2])
        sizes = [PART_BYTES_MIN + self.random.randrange(1000) for _ in range(large)]
        return [*((text * (size // len(text) + 1))[:size].encode() for size in sizes), text.encode()]

    def write_parts(self, branch: str, path: str, contents: Sequence[bytes]) -> tuple[str, dict[int, str]]:
        """Begin an upload and write its parts in any order, some twice. Return its id, and the ETags by number."""
        key = f"{branch}/{path}"
        upload = str(self.gateway.call("create_multipart_upload", Key=key)["UploadId"])
        numbered = list(enumerate(contents, 1))
        self.random.shuffle(numbered)
        if self.random.random() < 0.3:
            numbered.insert(0, (len(contents), b"another content, which is replaced"))
        etags: dict[int, str] = {}
        for number, body in numbered:
            answer = self.gateway.call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=body)
            etags[number] = answer["ETag"]
        return upload, etags

    def write_and_complete(
        self, branch: str, path: str, contents: Sequence[bytes], *, if_absent: bool, copied: str | None = None
    ) -> None:
        """`copied`: the path of an object of the client's own that becomes the last part."""
        key = f"{branch}/{path}"
        upload, etags = self.write_parts(branch, path, contents)
        if copied is not None:
            source, number = self.gateway.source_of(self.name, copied), len(contents)
            answer = self.gateway.call(
                "upload_part_copy", Key=key, UploadId=upload, PartNumber=number, CopySource=source
            )
            etags[number] = answer["CopyPartResult"]["ETag"]
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(etags.items())]
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        arguments = {"Key": key, "UploadId": upload, "MultipartUpload": {"Parts": parts}, **condition}
        self.complete_until_answered(partial(self.complete, arguments))

    def complete(self, arguments: Mapping[str, Any]) -> str:
        answer = self.gateway.call("complete_multipart_upload", **arguments)
        if "ETag" not in answer:
            raise OutcomeUnknown("the answer to a completion broke off")
        return str(answer["ETag"])

    def complete_until_answered(self, complete: Callable[[], str]) -> None:
        """Ask again until there is an answer, as S3 clients do; sometimes once more, which must answer the same."""
        begun = time.monotonic()
        etag = self.ask_until_answered(complete)
        if self.random.random() < 0.5:
            return
        try:
            again = complete()
        except RefstoreError as error:
            if error.code == "NoSuchUpload" and time.monotonic() - begun < ANSWERS_AGAIN_SECONDS:
                raise Corrupt(f"a completion answered {etag}, and the same call then {error}") from error
        else:
            if again != etag:
                raise Corrupt(f"a completion answered {etag}, and the same call then {again}")

    def ask_until_answered(self, complete: Callable[[], str]) -> str:
        """Raises OutcomeUnknown, unless the first answer says that nothing was done."""
        errors: list[RefstoreError] = []
        while len(errors) < COMPLETIONS:
            try:
                return complete()
            except RefstoreError as error:
                if not errors and error.code in ledgers.DEFINITE:
                    raise
                errors.append(error)
        raise OutcomeUnknown(f"a completion was not answered: {errors[-1]}")


if __name__ == "__main__":
    run_client(sys.argv[1:], S3Client)
