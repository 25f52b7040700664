"""The HTTP API: its flows against an empty route of the same app, uploads against plain Starlette, pages against their encoding.

The server is `refstore serve` with one worker on the embedded default, on tmpfs, its log in a file; the clients are one other process
that speaks bare HTTP. The empty route is `GET /api/v1/user`: it has the middleware, the authentication and an answer's encoding, and
asks no store for anything.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bench import api_servers, lakes
from bench.api_client import Call, write_calls
from bench.api_servers import Server
from bench.measure import Row, Series, at_least, at_most, in_fresh_process, in_turns, rates
from bench.reaping import reset_branch
from bench.workshop import Workshop, filling, make_lake
from refstore.repository import Repository

CLIENTS: Final = 16
SHARE: Final = 0.5
"""Of the rate of what is compared with."""
PAGES_PER_SECOND: Final = 20
PAGE: Final = 1000
P99_FACTOR: Final = 2
UPLOAD_BYTES: Final = 1 << 20
STATS_PER_SECOND: Final = 200.0
"""The pace at which the p99 is taken: an answer's latency when a server is asked for all that it can do says only how many wait."""
EMPTY: Final = Call("GET", "/api/v1/user")
REPOSITORY: Final = f"/api/v1/repositories/{lakes.REPOSITORY}"


def run(shop: Workshop) -> Iterator[Row]:
    yield from flows(shop)
    yield from uploads(shop)
    yield from pages(shop)
    yield from beside_reaper(shop)


def flows(shop: Workshop) -> Iterator[Row]:
    """stat and link, each in turns with the empty route."""
    scale = shop.scale
    shop.say(f"api: staging and committing {scale.served:,} objects")
    folder = shop.in_memory("api")
    make_lake(folder)
    with filling(folder) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", range(scale.served))
        repo.create_branch("staged", "main")
        repo.commit("main", "what is committed")
        lakes.upload(repo, "staged", range(scale.served))
        shop.say(f"api: issuing {scale.asked * scale.turns:,} addresses")
        links = [issued(repo, folder, turn, scale.asked) for turn in range(scale.turns)]
    chance = random.Random(1)
    paths = [lakes.path_of(chance.randrange(scale.served)) for _ in range(scale.asked)]
    with api_servers.refstore(folder, shop.on_disk("api") / "log") as server:
        for what, calls in (
            ("stat of staged objects", [stat("staged", path) for path in paths]),
            ("stat of committed objects", [stat("main", path) for path in paths]),
            ("link of issued addresses", links),
        ):
            shop.say(f"api: {what}")

            def ours(turn: int, calls: Sequence[Any] = calls) -> float:
                return load(shop, server, calls[turn] if isinstance(calls[0], list) else calls)["seconds"]

            def empty(_turn: int) -> float:
                return load(shop, server, [EMPTY] * scale.asked)["seconds"]

            each, floor = in_turns(scale.turns, ours, empty)
            yield Row(
                what=f"{what} through the API, {CLIENTS} keep-alive clients",
                ours=rates(scale.asked, each, "calls/s"),
                other=rates(scale.asked, floor, "calls/s"),
                other_name="GET /api/v1/user",
                bar=at_least(SHARE),
            )


def uploads(shop: Workshop) -> Iterator[Row]:
    scale = shop.scale
    folder, bare = shop.in_memory("uploads"), shop.in_memory("plain")
    make_lake(folder)
    logs = shop.on_disk("uploads")
    with ExitStack() as stack:
        ours = stack.enter_context(api_servers.refstore(folder, logs / "ours"))
        plain = stack.enter_context(api_servers.plain(bare, logs / "plain"))

        def api(turn: int) -> float:
            shop.say(f"api: uploads, turn {turn + 1} of {scale.turns}")
            target = f"{REPOSITORY}/branches/main/objects?path="
            calls = [Call("POST", f"{target}turn-{turn}/{number}", "", UPLOAD_BYTES, 201) for number in range(scale.uploaded)]
            return load(shop, ours, calls)["seconds"]

        def floor(_turn: int) -> float:
            seconds = load(shop, plain, [Call("POST", "/upload", "", UPLOAD_BYTES, 201)] * scale.uploaded)["seconds"]
            for file in bare.iterdir():  # as much is in memory as ours leaves there, and no more
                file.unlink()
            return seconds

        each, others = in_turns(scale.turns, api, floor)
    shop.drop(folder)
    yield Row(
        what="upload of 1 MiB objects through the API to the local store",
        ours=rates(scale.uploaded, each, "MiB/s"),
        other=rates(scale.uploaded, others, "MiB/s"),
        other_name="plain Starlette, request.stream() into a file",
        bar=at_least(SHARE),
        note=f"{CLIENTS} keep-alive clients; ours with checksum, sync, rename and reference",
    )


def pages(shop: Workshop) -> Iterator[Row]:
    scale = shop.scale
    folder = shop.in_memory("pages")
    make_lake(folder)
    with filling(folder) as lake:
        lakes.upload(lake.repository(lakes.REPOSITORY), "main", range(PAGE * scale.pages))
    starts = ["", *(lakes.path_of(PAGE * number - 1) for number in range(1, scale.pages))]
    calls = [Call("GET", f"{REPOSITORY}/refs/main/objects/ls?amount={PAGE}&after={quote(after)}") for after in starts]
    parts: list[dict[str, Any]] = []
    with api_servers.refstore(folder, shop.on_disk("pages") / "log") as server:

        def api(turn: int) -> float:
            shop.say(f"api: pages, turn {turn + 1} of {scale.turns}")
            return load(shop, server, calls, clients=1)["seconds"]

        def alone(_turn: int) -> float:
            parts.append(in_fresh_process("api_pages", data=str(folder), repository=lakes.REPOSITORY, pages=scale.pages, amount=PAGE))
            return parts[-1]["encoding"]

        each, encoding = in_turns(scale.turns, api, alone)
    rate = rates(scale.pages, each, "pages/s")
    what = f"listing pages of {PAGE:,} staged objects through the API, one client"
    yield Row(what=what, ours=rate, bar=at_least(PAGES_PER_SECOND))
    yield Row(what=what, ours=rate, other=rates(scale.pages, encoding, "pages/s"), other_name="encoding them alone")
    whole = Series(tuple(seconds / scale.pages * 1000 for seconds in each), "ms/page")
    for name, meaning in (("reading", "reading it from the SDK"), ("models", "making the models"), ("encoding", "encoding the models")):
        apart = Series(tuple(done[name] / scale.pages * 1000 for done in parts), "ms/page")
        yield Row(what=f"of a listing's page: {meaning}", ours=apart, other=whole, other_name="the page through the API")


def beside_reaper(shop: Workshop) -> Iterator[Row]:
    """The p99 of stat, at a steady pace, with a reaper that deletes beside the service, and without."""
    scale = shop.scale
    count = scale.reaped
    folder, logs = shop.in_memory("beside"), shop.on_disk("beside")
    make_lake(folder)
    with filling(folder) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", range(scale.served))
        for turn in range(scale.long_turns):
            repo.create_branch(f"due-{turn}", "main@")
    chance = random.Random(2)
    calls = [stat("main", lakes.path_of(chance.randrange(scale.served))) for _ in range(scale.asked)]
    spans: list[float] = []
    with api_servers.refstore(folder, logs / "log") as server:

        def beside(turn: int) -> float:
            shop.say(f"api: stat beside a reaper, turn {turn + 1} of {scale.long_turns}")
            reset_branch(folder, count, f"due-{turn}")

            def reap() -> None:
                done = in_fresh_process("reap", data=str(folder))
                assert done["deleted"] == count, f"{done['deleted']} of {count} were deleted"
                spans.append(done["seconds"])

            return paced(shop, server, calls, reap)["p99_ms"]

        def without(_turn: int) -> float:
            return paced(shop, server, calls, lambda: threading.Event().wait(spans[-1]))["p99_ms"]

        each, quiet = in_turns(scale.long_turns, beside, without)
    yield Row(
        what=f"p99 of stat while a reaper deletes {count:,} objects beside it",
        ours=Series(each, "ms"),
        other=Series(quiet, "ms"),
        other_name="without",
        bar=at_most(P99_FACTOR),
        note=f"{CLIENTS} clients, together {STATS_PER_SECOND:g} calls/s; the reaper is a process of its own",
    )


def load(shop: Workshop, server: Server, calls: Sequence[Call], *, clients: int = CLIENTS) -> dict[str, Any]:
    """What the client's process measured when it made the calls once, as fast as it got answers."""
    file = write_calls(shop.on_disk("calls") / "calls", calls)
    busy = server.cpu_seconds()
    done = in_fresh_process("api_load", port=server.port, authorization=server.authorization, calls=str(file), clients=clients)
    assert done["answered"] == len(calls), f"{done['answered']} of {len(calls)} calls were answered"
    file.unlink()
    return {**done, "server_cpu_seconds": server.cpu_seconds() - busy}


def paced(shop: Workshop, server: Server, calls: Sequence[Call], meanwhile: Callable[[], object]) -> dict[str, Any]:
    """What it measured at a steady pace for as long as `meanwhile` took."""
    folder = shop.on_disk("calls")
    file, until = write_calls(folder / "calls", calls), folder / "over"
    failed: list[BaseException] = []

    def work() -> None:
        try:
            meanwhile()
        except BaseException as error:  # noqa: BLE001  # raised below, in the thread that waits
            failed.append(error)
        finally:
            until.touch()

    thread = threading.Thread(target=work)
    thread.start()
    done = in_fresh_process(
        "api_load",
        port=server.port,
        authorization=server.authorization,
        calls=str(file),
        clients=CLIENTS,
        per_second=STATS_PER_SECOND,
        until=str(until),
    )
    thread.join()
    if failed:
        raise failed[0]
    return done


def stat(ref: str, path: str) -> Call:
    return Call("GET", f"{REPOSITORY}/refs/{ref}/objects/stat?path={quote(path)}")


def issued(repo: Repository, folder: Path, turn: int, count: int) -> list[Call]:
    """Links of so many addresses, given out and written to beforehand."""
    write = lakes.files_under(lakes.blobs_of(folder, repo))
    namespace = repo.context.objects.url.partition("?")[0]
    calls: list[Call] = []
    for start in range(0, count, 1000):
        paths = [f"linked/{turn}/{number:06d}" for number in range(start, min(start + 1000, count))]
        for given in repo.issue_many("staged", paths):
            write(given.address, lakes.body_of(0))
            body = {
                "staging": {"physical_address": f"{namespace}/{given.address}?token={given.token}"},
                "checksum": "0" * 64,
                "size_bytes": lakes.BODY_BYTES,
            }
            calls.append(Call("PUT", f"{REPOSITORY}/branches/staged/staging/backing?path={quote(given.path)}", json.dumps(body)))
    return calls
