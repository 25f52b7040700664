"""What an operator sees of the reaper over HTTP, and lets go on."""

from __future__ import annotations

from refstore.configuration.settings import ReaperSettings
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reaper_records import BreakerState
from refstore_reaper import breaker
from refstore_reaper.daemon import Reaper
from tests.api.service import application
from tests.purging import content_of, rewrite


def test_what_the_breaker_stops_is_let_go_on_in_a_deleted_repository_too() -> None:
    with application() as service:
        ctx = service.lake.create_repository("sales").context
        service.lake.delete_repository("sales")
        service.lake.kv.set(keys.reaper_state(ctx.repo, "breaker"), encode(BreakerState("w", 1, "hourly", 5, 5)))
        (found,) = service("GET", "/reaper/status", params={"repository": "sales"}).json()["repositories"]
        assert found["stopped"]
        answered = service("POST", "/repositories/sales/reaper/resume", json={"objects": 7})
        assert (answered.status_code, "goes on" in answered.json()["message"]) == (200, True)
        state = breaker.read_state(service.lake.kv, ctx.repo)
        assert state is not None
        assert (state.tripped_ms, state.allowed_objects) == (0, 7)


def test_why_says_who_deleted_an_address_and_under_which_rule() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        address = repo.upload("main", "a", b"x").address
        repo.reset("main")
        with Reaper(service.lake, ReaperSettings(), grace_seconds=0, asynchronous=False) as daemon:
            daemon.run_once(lambda: False)
        found = service("GET", "/repositories/sales/addresses/why", params={"physical_address": address}).json()
        assert found["now"]["state"] == "gone"
        (event,) = found["events"]
        assert (event["by"], event["run"] != "", event["cause"]) == ("reaper", True, "reset")
        assert event["rule"] == "nothing named it any more when its grace window was over"


def test_why_says_what_an_address_is_to_a_purged_object() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        identity = repo.upload("main", "a", b"rows").address
        repo.commit("main", "a")
        content = content_of(rewrite(repo, "main", "a", b"fewer"))
        found = service("GET", "/repositories/sales/addresses/why", params={"physical_address": content}).json()
        assert found["now"]["state"] == "content of a purged object"
        assert found["meaning"].startswith(f"it is the content of the object {identity}")
        purged = found["purged"]
        assert (purged["role"], purged["run"]) == ("content", "run-1")
        assert purged["identity"].endswith(identity)
        assert purged["content"] == found["physical_address"]
        found = service("GET", "/repositories/sales/addresses", params={"physical_address": content}).json()
        assert found["state"] == "content of a purged object"
        found = service("GET", "/repositories/sales/addresses/why", params={"physical_address": identity}).json()
        assert (found["purged"]["role"], found["purged"]["content"]) == ("identity", purged["content"])


def test_a_repository_that_never_was_is_not_found() -> None:
    with application() as service:
        assert service("GET", "/reaper/status", params={"repository": "sales"}).status_code == 404
        assert service("POST", "/repositories/sales/reaper/resume").status_code == 404
