"""What was lost, over HTTP: listed at once and page by page, and taken back over nothing newer."""

from __future__ import annotations

from typing import Any

from refstore.operations.upload import Upload
from tests.api.service import application
from tests.reaping import release_all

GRACE = "/repositories/sales/grace"
RESTORE = "/repositories/sales/branches/main/objects/restore"


def test_what_a_reset_lost_is_listed_at_once_page_by_page() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        repo.upload_many("main", [Upload(path=f"a/{number}", body=b"1") for number in range(5)])
        repo.reset("main")
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            page = service("GET", GRACE, params={"amount": 2, "after": after}).json()
            found += page["results"]
            after = page["pagination"]["next_offset"]
            if not page["pagination"]["has_more"]:
                break
        assert [(item["path"], item["cause"], "deletes_at" in item) for item in found] == [
            (f"a/{number}", "reset", False) for number in range(5)
        ]
        release_all(repo)
        assert all("deletes_at" in item for item in service("GET", GRACE).json()["results"])
        assert service("GET", GRACE, params={"after": "nonsense"}).status_code == 400


def test_a_restore_brings_all_back_and_says_what_it_did() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        entry = repo.upload("main", "a", b"1", metadata={"owner": "ann"}, content_type="text/csv")
        repo.reset("main")
        body = {"physical_address": entry.address}
        restored = service("POST", RESTORE, json=body)
        assert (restored.status_code, restored.json()["metadata"], restored.json()["content_type"]) == (
            201,
            {"owner": "ann"},
            "text/csv",
        )
        again = service("POST", RESTORE, json=body)
        assert (again.status_code, again.json()) == (200, restored.json())


def test_what_was_written_since_is_left_unless_it_is_forced() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        lost = repo.upload("main", "a", b"1")
        repo.reset("main")
        repo.upload("main", "a", b"2")
        body = {"physical_address": lost.address}
        refused = service("POST", RESTORE, json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "already_exists")
        assert repo.read("main", "a") == b"2"
        assert service("POST", RESTORE, json=body | {"force": True}).status_code == 201
        assert repo.read("main", "a") == b"1"
