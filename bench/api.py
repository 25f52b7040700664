"""The HTTP API: its flows against an empty route of the same app, uploads against plain Starlette, pages against their
encoding.

The server is `refstore serve` with one worker on the embedded default, on tmpfs, its log in a file; the clients are one
other process that speaks bare HTTP. Server and clients have a processor each, as far as a row does not say otherwise:
else the kernel moves the server's threads and the clients back and forth between the processors, and how it does so
that day is measured as well. The empty route is `GET /api/v1/user`: it has the middleware, the authentication and an
answer's encoding, and asks no store for anything.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from bench import api_servers, lakes
from bench.api_client import Call, write_calls
from bench.api_servers import Server
from bench.measure import Row, Series, at_least, at_most, in_fresh_process, in_turns, on_processor, rates
from bench.reaping import reset_branch
from bench.workshop import Scale, Workshop, filling, make_lake
from refstore.lake import Lake
from refstore.records import keys
from refstore.repository import Repository
from refstore.service import access_keys

CLIENTS: Final = 16
SHARE: Final = 0.5
"""Of the rate of what is compared with."""
UPLOAD_SHARE: Final = 0.6
PAGES_FACTOR: Final = 0.3
PAGE: Final = 1000
P99_FACTOR: Final = 1.5
P99_FACTOR_BESIDE_READS: Final = 5
P99_FACTOR_BESIDE_PAGES: Final = 3
OPERATOR_PAGES_PER_SECOND: Final = 10.0
OPERATOR_SECONDS: Final = 4.0
OPERATOR_TURNS: Final = 20
FILTERS: Final = 100
"""Prefixes of one log, as many as it takes."""
UPLOAD_BYTES: Final = 1 << 20
STATS_PER_SECOND: Final = 200.0
"""The pace at which the p99 is taken: an answer's latency when a server is asked for all that it can do says only how
many wait.
"""
WARM: Final = 500
"""Calls before the first turn: a server that has just started makes its threads, its connections and its routes with
the first ones.
"""
REAPING: Final[dict[str, object]] = {
    "grace_seconds": 0,
    "reaper_breaker_share": 1.0,
    "reaper_breaker_per_hour": 0,
    "reaper_pause_seconds": 0.5,
}
"""A reaper that takes what is due as soon as it sees it."""
REAPED_SECONDS_MAX: Final = 600.0
LOOK_SECONDS: Final = 0.1
"""Between two looks at what is left."""
EMPTY: Final = Call("GET", "/api/v1/user")
REPOSITORY: Final = f"/api/v1/repositories/{lakes.REPOSITORY}"


def run(shop: Workshop) -> Iterator[Row]:
    yield from flows(shop)
    yield from uploads(shop)
    yield from pages(shop)
    yield from beside_reaper(shop)
    yield beside_reads(shop)
    yield beside_pages(shop)


def flows(shop: Workshop) -> Iterator[Row]:
    """stat and link, each in turns with the empty route."""
    scale = shop.scale
    shop.say(f"api: staging and committing {scale.served:,} objects")
    folder = shop.in_memory("api")
    make_lake(folder)
    with filling(folder) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", range(scale.served))
        repo.create_branch("staged", source="main")
        repo.commit("main", "what is committed")
        lakes.upload(repo, "staged", range(scale.served))
        shop.say(f"api: issuing {2 * scale.asked * scale.turns:,} addresses")
        apart, together = (
            [issued(repo, folder, f"{name}-{turn}", scale.asked) for turn in range(scale.turns)] for name in "ab"
        )
        warm = issued(repo, folder, "warm", 2 * WARM)
    chance = random.Random(1)
    paths = [lakes.path_of(chance.randrange(scale.served)) for _ in range(scale.asked)]
    staged, committed = ([stat(ref, path) for path in paths] for ref in ("staged", "main"))
    logs = shop.on_disk("api")
    with api_servers.refstore(folder, logs / "apart") as server:
        for calls in (staged[:WARM], committed[:WARM], warm[:WARM], [EMPTY] * WARM):
            load(shop, server, calls)
        yield against_empty(shop, server, "stat of staged objects", [staged] * scale.turns)
        yield against_empty(shop, server, "stat of committed objects", [committed] * scale.turns)
        yield against_empty(shop, server, "link of issued addresses", apart)
    with api_servers.refstore(folder, logs / "together", apart=False) as server:
        for calls in (warm[WARM:], [EMPTY] * WARM):
            load(shop, server, calls)
        yield against_empty(shop, server, "link of issued addresses", together)
    shop.drop(folder)


def against_empty(shop: Workshop, server: Server, what: str, turns: Sequence[Sequence[Call]]) -> Row:
    """`turns`: the calls of each."""
    shop.say(f"api: {what}")
    each, floor = in_turns(
        len(turns),
        lambda turn: load(shop, server, turns[turn])["seconds"],
        lambda turn: load(shop, server, [EMPTY] * len(turns[turn]))["seconds"],
    )
    asked = len(turns[0])
    placed = (
        "server and clients on a processor each" if server.apart else "server and clients wherever the kernel puts them"
    )
    return Row(
        what=f"{what} through the API, {CLIENTS} keep-alive clients, {placed}",
        ours=rates(asked, each, "calls/s"),
        other=rates(asked, floor, "calls/s"),
        other_name="an empty route: GET /api/v1/user",
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
            calls = [
                Call("POST", f"{target}turn-{turn}/{number}", "", UPLOAD_BYTES, 201) for number in range(scale.uploaded)
            ]
            return load(shop, ours, calls)["seconds"]

        def peer(route: str) -> Callable[[int], float]:
            def measure(_turn: int) -> float:
                seconds = load(shop, plain, [Call("POST", route, "", UPLOAD_BYTES, 201)] * scale.uploaded)["seconds"]
                for file in bare.iterdir():  # as much is in memory as ours leaves there, and no more
                    file.unlink()
                return seconds

            return measure

        load(
            shop,
            ours,
            [
                Call("POST", f"{REPOSITORY}/branches/main/objects?path=warm/{n}", "", UPLOAD_BYTES, 201)
                for n in range(CLIENTS)
            ],
        )
        load(shop, plain, [Call("POST", "/upload", "", UPLOAD_BYTES, 201)] * CLIENTS)
        each, hashed, bare_seconds = in_turns(scale.turns, api, peer("/hashed"), peer("/upload"))
    shop.drop(folder)
    what = "upload of 1 MiB objects through the API to the local store"
    note = f"{CLIENTS} keep-alive clients; ours with checksums, sync, rename and reference"
    rate = rates(scale.uploaded, each, "MiB/s")
    other = "plain Starlette, request.stream() into a file"
    yield Row(
        what=what,
        ours=rate,
        other=rates(scale.uploaded, hashed, "MiB/s"),
        other_name=f"{other}, with SHA-256 and MD5",
        note=note,
    )
    yield Row(
        what=what,
        ours=rate,
        other=rates(scale.uploaded, bare_seconds, "MiB/s"),
        other_name=other,
        bar=at_least(UPLOAD_SHARE),
        note=f"{note}; theirs without",
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
            parts.append(
                in_fresh_process(
                    "api_pages", data=str(folder), repository=lakes.REPOSITORY, pages=scale.pages, amount=PAGE
                )
            )
            return parts[-1]["reading"]

        load(shop, server, [calls[number % scale.pages] for number in range(WARM)], clients=1)
        each, reading = in_turns(scale.turns, api, alone)
    rate = rates(scale.pages, each, "pages/s")
    what = f"listing pages of {PAGE:,} staged objects through the API, one client"
    yield Row(
        what=what,
        ours=rate,
        other=rates(scale.pages, reading, "pages/s"),
        other_name="the SDK's own listing",
        bar=at_least(PAGES_FACTOR),
    )
    whole = Series(tuple(seconds / scale.pages * 1000 for seconds in each), "ms/page")
    for name, meaning in (
        ("reading", "reading it from the SDK"),
        ("items", "making the items"),
        ("encoding", "encoding them"),
    ):
        apart = Series(tuple(done[name] / scale.pages * 1000 for done in parts), "ms/page")
        yield Row(
            what=f"of a listing's page: {meaning}", ours=apart, other=whole, other_name="the page through the API"
        )


def beside_reaper(shop: Workshop) -> Iterator[Row]:
    yield p99_beside(shop, alone=True)
    yield p99_beside(shop, alone=False)
    yield giving_way(shop)


def p99_beside(shop: Workshop, *, alone: bool) -> Row:
    """The p99 of stat, at a steady pace, beside a reaper that deletes, and without. `alone`: `refstore reaper`, else
    the service's own.
    """
    scale = shop.scale
    count = scale.reaped_beside
    folder = shop.in_memory("beside")
    make_lake(folder)
    with filling(folder) as lake:
        lakes.upload(lake.repository(lakes.REPOSITORY), "main", range(scale.served))
    chance = random.Random(2)
    calls = [stat("main", lakes.path_of(chance.randrange(scale.served))) for _ in range(scale.asked)]
    spans: list[float] = []
    settings = {} if alone else REAPING
    with (
        api_servers.refstore(
            folder, shop.on_disk("beside") / "log", reaper=not alone, apart=False, **settings
        ) as server,
        lakes.open_lake(*lakes.stores_in(folder)) as watching,
    ):

        def reap() -> None:
            began = time.perf_counter()
            if alone:
                api_servers.reap(folder, **REAPING)
            wait_until_processed(watching)
            spans.append(time.perf_counter() - began)

        def beside(turn: int) -> float:
            shop.say(f"api: stat beside a reaper, turn {turn + 1} of {scale.p99_turns}")
            reset_branch(folder, count, f"due-{turn}")
            p99_ms = paced(shop, server, calls, reap)["p99_ms"]
            check_blobs(folder, scale.served)
            return p99_ms

        def without(_turn: int) -> float:
            return paced(shop, server, calls, lambda: time.sleep(spans[-1]))["p99_ms"]

        load(shop, server, calls[:WARM])
        each, quiet = in_turns(scale.p99_turns, beside, without)
    shop.drop(folder)
    where = "`refstore reaper`, a process of its own" if alone else "that of `refstore serve`, as by default"
    return Row(
        what=f"p99 of stat while a reaper deletes {count:,} objects beside it",
        ours=Series(each, "ms"),
        other=Series(quiet, "ms"),
        other_name="without",
        bar=at_most(P99_FACTOR),
        note=f"{CLIENTS} clients, together {STATS_PER_SECOND:g} calls/s; the reaper is {where}",
    )


def beside_reads(shop: Workshop) -> Row:
    """The p99 of one key's stat, at a steady pace, while another key sends expensive reads without a pause."""
    scale = shop.scale
    folder = shop.in_memory("reads")
    make_lake(folder)
    with filling(folder) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        upload_and_commit(repo, scale)
        reader = access_keys.create_key(lake, access_keys.Role.READER)
    chance = random.Random(3)
    calls = [stat("main", lakes.path_of(chance.randrange(scale.served))) for _ in range(scale.asked)]
    nowhere = "&".join(
        f"prefixes=events/year%3D2026/batch-00000/part-{number:04d}.nowhere" for number in range(FILTERS)
    )
    kinds = (
        f"commits?amount=1000&{nowhere}",
        f"diff/main?type=three_dot&amount={PAGE}",
        f"objects/ls?amount={PAGE}",
        f"objects/ls?amount={PAGE}&delimiter=/&prefix=events/year%3D2026/",
    )
    refs = ("main", f"main~{scale.logged - 1}", "main", "main")
    expensive = [Call("GET", f"{REPOSITORY}/refs/{refs[n % 4]}/{kinds[n % 4]}") for n in range(scale.expensive)]
    authorization = "Basic " + b64encode(f"{reader.key.id}:{reader.secret}".encode()).decode()
    spans: list[float] = []
    with api_servers.refstore(folder, shop.on_disk("reads") / "log", apart=False) as server:
        greedy = server._replace(authorization=authorization)

        def attack() -> None:
            spans.append(load(shop, greedy, expensive)["seconds"])

        def beside(turn: int) -> float:
            shop.say(f"api: stat beside expensive reads, turn {turn + 1} of {scale.long_turns}")
            return paced(shop, server, calls, attack)["p99_ms"]

        def without(_turn: int) -> float:
            return paced(shop, server, calls, lambda: time.sleep(spans[-1]))["p99_ms"]

        load(shop, server, calls[:WARM])
        load(shop, greedy, expensive[:CLIENTS])
        each, quiet = in_turns(scale.long_turns, beside, without)
    shop.drop(folder)
    return Row(
        what=f"p99 of stat while another key sends expensive reads without a pause, {CLIENTS} at a time",
        ours=Series(each, "ms"),
        other=Series(quiet, "ms"),
        other_name="without",
        bar=at_most(P99_FACTOR_BESIDE_READS),
        note=f"{CLIENTS} clients, together {STATS_PER_SECOND:g} stats/s; "
        f"logs of {scale.logged} commits with {FILTERS} prefixes,"
        f" differences and listings of {PAGE:,}",
    )


def upload_and_commit(repo: Repository, scale: Scale) -> None:
    """Upload what the readers of a row read, and make the commits that its logs list."""
    lakes.upload(repo, "main", range(scale.served))
    for number in range(scale.logged):
        repo.commit("main", f"commit {number}")
        lakes.upload(repo, "main", [number * scale.served // scale.logged])


def beside_pages(shop: Workshop) -> Row:
    """The p99 of stat, at a steady pace, while operators load pages."""
    scale = shop.scale
    folder = shop.in_memory("pages")
    make_lake(folder)
    with filling(folder) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        upload_and_commit(repo, scale)
        repo.set_retention('{"default_retention_days": 7}')
        reader = access_keys.create_key(lake, access_keys.Role.READER)
    chance = random.Random(4)
    calls = [stat("main", lakes.path_of(chance.randrange(scale.served))) for _ in range(scale.asked)]
    own = f"/ui/repositories/{lakes.REPOSITORY}"
    places = ("/ui", own, *(f"{own}/{each}" for each in ("commits", "objects", "trash", "marks", "runs", "rules")))
    with api_servers.refstore(folder, shop.on_disk("pages") / "log", apart=False) as server:
        cookie = sign_in(server.port, reader.key.id, reader.secret)

        def load_pages() -> None:
            began = time.monotonic()
            for number in range(int(OPERATOR_PAGES_PER_SECOND * OPERATOR_SECONDS)):
                time.sleep(max(0.0, began + number / OPERATOR_PAGES_PER_SECOND - time.monotonic()))
                get_page(server.port, cookie, places[number % len(places)])

        def beside(turn: int) -> float:
            shop.say(f"api: stat beside pages, turn {turn + 1} of {OPERATOR_TURNS}")
            return paced(shop, server, calls, load_pages)["p99_ms"]

        def without(_turn: int) -> float:
            return paced(shop, server, calls, lambda: time.sleep(OPERATOR_SECONDS))["p99_ms"]

        load(shop, server, calls[:WARM])
        for place in places:
            get_page(server.port, cookie, place)
        each, quiet = in_turns(OPERATOR_TURNS, beside, without)
    shop.drop(folder)
    return Row(
        what=f"p99 of stat while {OPERATOR_PAGES_PER_SECOND:g} pages are loaded each second",
        ours=Series(each, "ms"),
        other=Series(quiet, "ms"),
        other_name="without",
        bar=at_most(P99_FACTOR_BESIDE_PAGES),
        note=f"{CLIENTS} clients, together {STATS_PER_SECOND:g} stats/s; {len(places)} pages in turn, of a repository "
        f"with {scale.served:,} objects and {scale.logged} commits",
    )


def sign_in(port: int, key_id: str, secret: str) -> str:
    """Return the cookie of a session of the pages."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/ui/sign-in")
        answer = connection.getresponse()
        form_cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        token = answer.read().decode().partition('name="form_token" value="')[2].partition('"')[0]
        form = {"form_token": token, "access_key_id": key_id, "secret_access_key": secret}
        headers = {
            "cookie": form_cookie,
            "content-type": "application/x-www-form-urlencoded",
            "origin": f"http://127.0.0.1:{port}",
        }
        connection.request("POST", "/ui/sign-in", urlencode(form), headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 303:
            raise RuntimeError(f"signing in was answered with {answer.status}")
        return (answer.getheader("set-cookie") or "").partition(";")[0]


def get_page(port: int, cookie: str, place: str) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", place, headers={"cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{place} was answered with {answer.status}")


def giving_way(shop: Workshop) -> Row:
    """What it costs a reaper that it lets others go first where nobody is."""
    count = shop.scale.reaped

    def reap(*options: str) -> Callable[[int], float]:
        def turn(number: int) -> float:
            shop.say(
                f"api: a reaper with {' '.join(options) or 'the defaults'}, turn {number + 1} of "
                f"{shop.scale.long_turns}"
            )
            folder = shop.in_memory("giving-way")
            make_lake(folder)
            reset_branch(folder, count, "main")
            began = time.perf_counter()
            api_servers.reap(folder, *options, **REAPING)
            seconds = time.perf_counter() - began
            check_blobs(folder, 0)
            shop.drop(folder)
            return seconds

        return turn

    polite, selfish = in_turns(shop.scale.long_turns, reap(), reap("--nice", "0"))
    return Row(
        what=f"reap {count:,} objects with `refstore reaper`, which lets others go first, its start included",
        ours=rates(count, polite, "objects/s"),
        other=rates(count, selfish, "objects/s"),
        other_name="--nice 0",
    )


def wait_until_processed(lake: Lake) -> None:
    """Until no token waits for the reaper. Raises RuntimeError.

    The KV is asked, by a lake that is open: whatever takes more of the processor is measured as well.
    """
    until = time.monotonic() + REAPED_SECONDS_MAX
    decided = keys.deleted_tokens(lake.repository(lakes.REPOSITORY).context.repo)
    while lake.kv.count(decided, limit=1):
        if time.monotonic() > until:
            raise RuntimeError("the reaper of the service did not delete what is due")
        time.sleep(LOOK_SECONDS)


def check_blobs(folder: Path, left: int) -> None:
    """Check that so many blobs are there. Raises RuntimeError."""
    there = sum(1 for hour in folder.glob("objects/*/data/*") for _ in os.scandir(hour))
    if there != left:
        raise RuntimeError(f"the reaper left {there} blobs; {left} were to stay")


def load(shop: Workshop, server: Server, calls: Sequence[Call], *, clients: int = CLIENTS) -> dict[str, Any]:
    """What the client's process measured when it made the calls once, as fast as it got answers."""
    file = write_calls(shop.on_disk("calls") / "calls", calls)
    busy = server.cpu_seconds()
    with on_processor(-1 if server.apart else None):
        done = in_fresh_process(
            "api_load", port=server.port, authorization=server.authorization, calls=str(file), clients=clients
        )
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


def issued(repo: Repository, folder: Path, name: str, count: int) -> list[Call]:
    """Links of so many addresses, given out and written to beforehand."""
    write = lakes.files_under(lakes.blobs_of(folder, repo))
    namespace = repo.context.objects.url.partition("?")[0]
    calls: list[Call] = []
    for start in range(0, count, 1000):
        paths = [f"linked/{name}/{number:06d}" for number in range(start, min(start + 1000, count))]
        for given in repo.issue_many("staged", paths):
            write(given.address, lakes.body_of(0))
            body = {
                "staging": {"physical_address": f"{namespace}/{given.address}?token={given.token}"},
                "checksum": "0" * 64,
                "size_bytes": lakes.BODY_BYTES,
            }
            calls.append(
                Call("PUT", f"{REPOSITORY}/branches/staged/staging/backing?path={quote(given.path)}", json.dumps(body))
            )
    return calls
