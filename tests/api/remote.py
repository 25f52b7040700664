"""A repository as the soak's client wants one, over HTTP: each call goes to any of the services that are there.

What a service answers becomes an error with its code, so that the ledger says what was told; a service that does not
answer leaves the call in doubt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Self

import httpx

from refstore.errors import Corrupt, OutcomeUnknown, RefstoreError
from refstore.operations.upload import Upload

AT_ONCE = 4


class NewCommit(NamedTuple):
    """The part of `CommitInfo` that the soak's clients use."""

    id: str


class Issued(NamedTuple):
    path: str
    address: str
    """As the service gave it, with the token in it."""
    url: str

    @property
    def token(self) -> str:
        return self.address


class TrashItem(NamedTuple):
    address: str


class Remote:
    def __init__(self, services: Sequence[httpx.Client], repository: str, seed: int) -> None:
        self.services = list(services)
        self.random = random.Random(seed)
        self.base = f"/repositories/{repository}"
        self.issued: dict[str, Issued] = {}
        self.pool = ThreadPoolExecutor(AT_ONCE)
        self.answers = 0

    @property
    def context(self) -> Self:
        return self

    @property
    def objects(self) -> Self:
        return self

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Raises what the service answers."""
        service = self.random.choice(self.services)
        try:
            answered = service.request(method, self.base + path, **options)
        except httpx.TransportError as error:
            if isinstance(error, httpx.ConnectError) and len(self.services) > 1 and service in self.services:
                self.services.remove(service)
            raise OutcomeUnknown(f"the service did not answer ({error!r})") from error
        self.answers += 1
        if answered.is_success:
            return answered
        told = answered.json()
        raised: RefstoreError = (Corrupt if told["code"].startswith("corrupt") else RefstoreError)(told["message"])
        raised.code = told["code"]
        raise raised

    # ---- the calls of `tests.soak.client`

    def upload(self, branch: str, path: str, body: bytes) -> None:
        self.call("POST", f"/branches/{branch}/objects", params={"path": path}, content=body)

    def upload_many(self, branch: str, uploads: Sequence[Upload]) -> None:
        uploading = [self.pool.submit(self.upload, branch, item.path, item.body) for item in uploads]
        wait(uploading)  # none may land behind the client's next call
        for each in uploading:
            each.result()

    def delete(self, branch: str, path: str) -> None:
        self.call("DELETE", f"/branches/{branch}/objects", params={"path": path})

    def delete_prefix(self, branch: str, prefix: str) -> None:
        found = self.call("GET", f"/refs/{branch}/objects/ls", params={"prefix": prefix}).json()["results"]
        self.call("POST", f"/branches/{branch}/objects/delete", json={"paths": [item["path"] for item in found]})

    def copy(self, source: str, path: str, *, to_branch: str, to_path: str) -> None:
        body = {"src_ref": source, "src_path": path}
        self.call("POST", f"/branches/{to_branch}/objects/copy", params={"dest_path": to_path}, json=body)

    def move(self, branch: str, path: str, *, to_path: str) -> None:
        self.call("POST", f"/branches/{branch}/objects/move", json={"src_path": path, "dest_path": to_path})

    def issue(self, branch: str, path: str) -> Issued:
        told = self.call("GET", f"/branches/{branch}/staging/backing", params={"path": path, "presign": True}).json()
        made = Issued(path, told["physical_address"], told["presigned_url"])
        self.issued[made.address] = made
        return made

    def put(self, address: str, body: bytes) -> None:
        """As somebody who holds nothing but the signed URL."""
        try:
            httpx.put(self.issued[address].url, content=body, timeout=30).raise_for_status()
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"the signed URL did not answer ({error!r})") from error

    def link(self, branch: str, path: str, address: str) -> None:
        body = {"staging": {"physical_address": address}, "checksum": "", "size_bytes": 0}
        self.call("PUT", f"/branches/{branch}/staging/backing", params={"path": path}, json=body)

    def commit(self, branch: str, message: str) -> NewCommit:
        return NewCommit(str(self.call("POST", f"/branches/{branch}/commits", json={"message": message}).json()["id"]))

    def reset(self, branch: str, *, path: str | None = None) -> None:
        self.call("PUT", f"/branches/{branch}", json={"type": "object", "path": path} if path else {"type": "reset"})

    def create_branch(self, name: str, source: str) -> None:
        self.call("POST", "/branches", json={"name": name, "source": source})

    def delete_branch(self, name: str) -> None:
        self.call("DELETE", f"/branches/{name}")

    def merge(self, source: str, *, into: str, strategy: str) -> None:
        self.call("POST", f"/refs/{source}/merge/{into}", json={"strategy": strategy})

    def revert(self, ref: str, *, on: str) -> None:
        self.call("POST", f"/branches/{on}/revert", json={"ref": ref, "parent_number": 1})

    def cherry_pick(self, ref: str, *, onto: str) -> None:
        self.call("POST", f"/branches/{onto}/cherry-pick", json={"ref": ref, "parent_number": 1})

    def list_trash(self, *, prefix: str) -> list[TrashItem]:
        found = self.call("GET", "/grace", params={"prefix": prefix}).json()["results"]
        return [TrashItem(item["physical_address"]) for item in found]

    def restore(self, address: str, *, to: str, force: bool) -> None:
        self.call("POST", f"/branches/{to}/objects/restore", json={"physical_address": address, "force": force})
