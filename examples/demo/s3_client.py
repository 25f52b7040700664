"""A client that writes through the S3 gateway with boto3: `python -m examples.demo.s3_client REPOSITORY FOLDER`.

It commits and resets with the SDK, because S3 has no such calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import boto3.session
import msgspec
from botocore.config import Config

import refstore
from examples.batches import split_batches
from examples.demo.clients import ATTEMPTS, BATCH, SHA256, Client, Files, sources_of
from examples.demo.s3_gateway import S3_CLIENT, GatewayAccess, read_access
from examples.demo.source_files import SourceFile
from refstore import Lake

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CopySourceTypeDef, ObjectIdentifierTypeDef

CONNECTIONS: Final = 4


def work_on_landing(client: ClientThroughS3) -> None:
    """Upload, leave uploads in parts open, reset; then write, overwrite, copy and delete; leave uploads open again."""
    files = client.files
    client.upload("landing", "dropped/", files[0::60])
    client.leave_open("landing", "dropped/", files[1::300])
    client.reset("landing")
    client.upload("landing", "landing/", files[0::24])
    client.upload("landing", "landing/", files[0::48], contents=files[1::48])
    client.upload_in_parts("landing", "parts/", files[2::240])
    client.commit("landing", "landed")
    client.upload("landing", "landing/", files[0::96], contents=files[3::96])
    client.upload_in_parts("landing", "landing/", files[24::240])
    client.copy("main", "lib/", "landing", "copied/", files[4::96])
    client.delete("landing", "landing/", files[48::96])
    client.delete("landing", "lib/", files[5::96])
    client.leave_open("landing", "parts/", files[3::300])


def make_s3_client(access: GatewayAccess) -> S3Client:
    config = Config(
        s3={"addressing_style": "path"},
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        proxies={},  # it is on loopback
    )
    session = cast("Any", boto3.session.Session())  # a part of its types is unknown
    return session.client(
        "s3",
        endpoint_url=access.url,
        region_name="us-east-1",
        aws_access_key_id=access.key_id,
        aws_secret_access_key=access.secret,
        config=config,
    )


def list_open_uploads(access: GatewayAccess, repository: str) -> list[str]:
    """Return the keys, with their branches, of the uploads in parts that nobody has ended."""
    pages = make_s3_client(access).get_paginator("list_multipart_uploads").paginate(Bucket=repository)
    return [upload.get("Key", "") for page in pages for upload in page.get("Uploads", ())]


class ClientThroughS3(Client):
    """Makes the same calls as `Client`, and the same reports."""

    def __init__(self, lake: Lake, repository: str, files: Files, reports: Path, access: GatewayAccess) -> None:
        super().__init__(lake, repository, files, reports)
        self._bucket = repository
        self._s3 = make_s3_client(access)

    def upload(self, branch: str, to: str, files: Files, *, contents: Files = (), batch: int = BATCH) -> None:
        def put(path: str, content: SourceFile) -> None:
            body, key = Path(content.file).read_bytes(), f"{branch}/{path}"
            self._note(self._s3.put_object(Bucket=self._bucket, Key=key, Body=body, Metadata={SHA256: content.sha256}))

        for pairs in split_batches(zip(files, contents or files, strict=False), batch):
            self._upload_each(put, branch, {to + file.path: content for file, content in pairs})

    def upload_in_parts(self, branch: str, to: str, files: Files) -> None:
        def put(path: str, content: SourceFile) -> None:
            key = f"{branch}/{path}"
            upload, etag = self._put_part(key, content)
            self._note(
                self._s3.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=key,
                    UploadId=upload,
                    MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]},
                )
            )

        self._upload_each(put, branch, {to + file.path: file for file in files})

    def leave_open(self, branch: str, to: str, files: Files) -> None:
        """Begin uploads, write a part of each, and never complete them."""
        for file in files:
            self._put_part(f"{branch}/{to}{file.path}", file)
        self.report("left open", branch, sources_of(to, files))

    def copy(self, ref: str, folder: str, branch: str, to: str, files: Files) -> None:
        for file in files:
            source: CopySourceTypeDef = {"Bucket": self._bucket, "Key": f"{ref}/{folder}{file.path}"}
            key = f"{branch}/{to}{file.path}"
            self._note(self._s3.copy_object(Bucket=self._bucket, Key=key, CopySource=source))
        self.report("copied", branch, sources_of(to, files))

    def delete(self, branch: str, folder: str, files: Files) -> None:
        keys: list[ObjectIdentifierTypeDef] = [{"Key": f"{branch}/{path}"} for path in sources_of(folder, files)]
        if keys:
            answer = self._s3.delete_objects(Bucket=self._bucket, Delete={"Objects": keys})
            self._note(answer)
            if "Errors" in answer:
                raise RuntimeError(f"not deleted: {answer['Errors']}")
        self.report("deleted", branch, sources_of(folder, files))

    def _upload_each(
        self, put: Callable[[str, SourceFile], None], branch: str, contents: Mapping[str, SourceFile]
    ) -> None:
        """Upload several at once, as S3 clients do."""
        sources = {path: content.path for path, content in contents.items()}
        self.report("began", branch, sources)
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="demo-s3") as pool:
            list(pool.map(put, contents.keys(), contents.values()))
        self.report("uploaded", branch, sources, self._addresses(branch, sources))

    def _addresses(self, branch: str, paths: Iterable[str]) -> list[str]:
        return [self.repo.stat(branch, path).address for path in paths]

    def _put_part(self, key: str, content: SourceFile) -> tuple[str, str]:
        """Begin an upload whose only part is the file. Return its id, and the part's ETag."""
        metadata = {SHA256: content.sha256}
        begun = self._s3.create_multipart_upload(Bucket=self._bucket, Key=key, Metadata=metadata)
        self._note(begun)
        upload, body = begun["UploadId"], Path(content.file).read_bytes()
        part = self._s3.upload_part(Bucket=self._bucket, Key=key, UploadId=upload, PartNumber=1, Body=body)
        self._note(part)
        return upload, part["ETag"]

    def _note(self, answer: Any) -> None:
        """Report what boto3 did again because of an error, as `Client` does."""
        for _ in range(answer["ResponseMetadata"]["RetryAttempts"]):
            self.report("repeated")


def main() -> None:
    repository, folder = sys.argv[1], Path(sys.argv[2])
    files = msgspec.json.decode((folder / "files.json").read_bytes(), type=list[SourceFile])
    with refstore.open() as lake:
        reports = folder / f"{S3_CLIENT}.reports"
        work_on_landing(ClientThroughS3(lake, repository, files, reports, read_access(folder)))


if __name__ == "__main__":
    main()
