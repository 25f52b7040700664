"""lakeFS's clients import: folders and buckets that the operator allows, in the background, with a commit that they can
ask for.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import BadRequestException as ClientBadRequest
from lakefs.exceptions import ConflictException, ForbiddenException, ImportManagerException, PermissionException
from lakefs_sdk import CommitCreation, ImportCreation, ImportLocation
from lakefs_sdk.exceptions import BadRequestException
from lakefs_sdk.exceptions import ForbiddenException as SdkForbidden

from refstore.configuration.settings import embedded_urls
from refstore.objects.base import ObjectPage, SkippedKeys
from refstore.objects.local import LocalObjects
from refstore.service.background_imports import COMPLETED, BackgroundImports
from tests.api.conftest import Running, client_of, serving
from tests.api.service import Application, application
from tests.api.test_limits import wait_until
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import BUCKET, S3Server

FILES = ["a.csv", "deep/er/1", "deep/er/2", "prefix-1/x", "prefix-2/y", "Grüße/100%.txt"]


@pytest.fixture(scope="session")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing") / "zone"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"data of {name}")
    (folder.parent / "secret").write_text("secret")
    return folder


@pytest.fixture(scope="session")
def local_service(tmp_path_factory: pytest.TempPathFactory, landing: Path) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("serve-imports")
    (folder / "lake").mkdir()
    allowed = {"REFSTORE_IMPORT_FROM": f"file://{landing}/ file://{folder}/lake/"}
    with serving(folder, *embedded_urls(folder / "lake"), environment=allowed) as running:
        yield running


@pytest.fixture(scope="session")
def s3_service(tmp_path_factory: pytest.TempPathFactory, real_s3: S3Server) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("serve-imports")
    with real_s3.client() as client:
        for name in FILES:
            client.put_object(Bucket=BUCKET, Key=f"landing/zone/{name}", Body=f"data of {name}".encode())
    allowed = {"REFSTORE_IMPORT_FROM": f"s3://{BUCKET}/landing/"}
    with (
        RedisServer(folder / "redis", fsync="no") as redis,
        serving(folder, redis.url, f"{real_s3.url('lakes')}", environment=allowed) as running,
    ):
        yield running


@pytest.fixture(params=["local", pytest.param("s3", marks=[pytest.mark.server, pytest.mark.slow])])
def where(request: pytest.FixtureRequest, landing: Path) -> tuple[Running, str]:
    """A service, and the URL of the folder that it may import from."""
    running: Running = request.getfixturevalue(f"{request.param}_service")
    return running, f"file://{landing}/" if request.param == "local" else f"s3://{BUCKET}/landing/zone/"


def new_repository(running: Running) -> lakefs.Repository:
    name = "t-" + secrets.token_hex(8)
    client = client_of(running)
    return lakefs.Repository(name, client).create(f"{client.storage_config.default_namespace_prefix}/{name}")


def paths(branch: lakefs.Branch) -> list[str]:
    return [found.path for found in branch.objects()]


def test_the_high_level_client_imports_prefixes_and_objects(where: tuple[Running, str]) -> None:
    running, source = where
    branch = new_repository(running).branch("main")
    branch.object("imported/old").upload(b"old")
    branch.object("beside").upload(b"kept")
    branch.commit("before")
    manager = branch.import_data(commit_message="my imported data", metadata={"foo": "bar"})
    manager.prefix(source, "imported/").object(f"{source}a.csv", "single/one.csv")
    done = manager.run()
    assert (done.completed, done.error, done.ingested_objects) == (True, None, len(FILES) + 1)
    head = branch.get_commit()
    assert done.commit is not None
    assert (done.commit.id, head.message, head.metadata) == (head.id, "my imported data", {"foo": "bar"})
    assert paths(branch) == ["beside", *sorted(f"imported/{name}" for name in FILES), "single/one.csv"]
    for name in FILES:
        assert branch.object(f"imported/{name}").reader("r").read() == f"data of {name}"
    with pytest.raises(ConflictException):  # it is over
        manager.cancel()


def test_signed_urls_and_ranges_read_what_was_imported(where: tuple[Running, str]) -> None:
    running, source = where
    branch = new_repository(running).branch("main")
    branch.import_data("x").prefix(source, "").run()
    found = branch.object("a.csv")
    with running.http() as http:
        url = f"repositories/{branch.repo_id}/refs/main/objects"
        part = http.get(url, params={"path": "a.csv"}, headers={"Range": "bytes=5-6"})
        assert (part.status_code, part.content) == (206, b"of")
        head = http.head(url, params={"path": "a.csv"})
        assert head.headers["content-length"] == str(len("data of a.csv"))
        assert (
            http.get(url, params={"path": "a.csv"}, headers={"If-None-Match": head.headers["etag"]}).status_code == 304
        )
    if source.startswith("s3:"):
        with found.reader("r", pre_sign=True) as reader:
            assert reader.read() == "data of a.csv"
        assert found.stat().checksum == hashlib.md5(b"data of a.csv", usedforsecurity=False).hexdigest()
    assert found.stat().physical_address == f"{source}a.csv"


def test_an_import_without_sources_is_refused(local_service: Running) -> None:
    branch = new_repository(local_service).branch("main")
    head = branch.get_commit().id
    with pytest.raises(ClientBadRequest, match="needs at least one source"):
        branch.import_data("my imported data", metadata={"foo": "bar"}).run()
    assert branch.get_commit().id == head


def test_lakefs_clients_are_shown_how_many_names_were_left_out(local_service: Running, landing: Path) -> None:
    """They read neither `skipped_objects` nor a log."""
    links = [landing / "link-1", landing / "prefix-1" / "link-2"]
    for link in links:
        link.symlink_to(landing / "a.csv")
    try:
        branch = new_repository(local_service).branch("main")
        done = branch.import_data("my data", metadata={"foo": "bar"}).prefix(f"file://{landing}/", "in/").run()
    finally:
        for link in links:
            link.unlink()
    assert (done.completed, done.error, done.ingested_objects) == (True, None, len(FILES))
    assert done.commit is not None
    assert done.commit.message == "my data (2 names of the source were left out)"
    assert done.commit.metadata == {"foo": "bar"}
    assert branch.get_commit().message == done.commit.message


def test_what_cannot_be_imported_is_told_by_the_status(local_service: Running, landing: Path) -> None:
    branch = new_repository(local_service).branch("main")
    manager = branch.import_data("x").prefix(f"file://{landing}/", "in/")
    manager.run()
    again = branch.import_data("x").prefix(f"file://{landing}/", "in/")
    with pytest.raises(ImportManagerException, match=r"no changes: .* has these changes already"):
        again.run()
    gone = branch.import_data("x").object(f"file://{landing}/not-there", "in/x")
    with pytest.raises(ImportManagerException, match="no object at 'not-there'"):
        gone.run()
    status = gone.status()
    assert (status.completed, status.commit) == (False, None)


@pytest.mark.parametrize(
    "source",
    ["file:///etc/", "local:///etc/passwd", "s3://elsewhere/", "file://{landing}-beside/", "file://{landing}/.."],
)
@pytest.mark.parametrize("kind", ["common_prefix", "object"])
def test_only_what_the_operator_allows_is_imported(
    local_service: Running, landing: Path, source: str, kind: str
) -> None:
    repo = new_repository(local_service)
    with pytest.raises((SdkForbidden, BadRequestException)) as refused:
        start(client_of(local_service), repo.id, source.format(landing=landing), kind)
    assert "import_from" in str(refused.value.body) or "'..'" in str(refused.value.body)


def start(client: Client, repository: str, source: str, kind: str = "common_prefix") -> str:
    body = ImportCreation(
        paths=[ImportLocation(type=kind, path=source, destination="in/x")],
        commit=CommitCreation(message="x", metadata={}),
    )
    found: str = client.sdk_client.import_api.import_start(repository, "main", body).id
    return found


def test_a_link_out_of_an_allowed_folder_is_no_way_out(local_service: Running, landing: Path) -> None:
    (landing / "out").symlink_to("/etc")
    (landing / "passwd").symlink_to("/etc/passwd")
    repo = new_repository(local_service)
    try:
        for source, kind in ((f"file://{landing}/out/", "common_prefix"), (f"file://{landing}/passwd", "object")):
            with pytest.raises(SdkForbidden):
                start(client_of(local_service), repo.id, source, kind)
        branch = repo.branch("main")
        branch.import_data("x").prefix(f"file://{landing}/", "").run()
        assert not {"passwd", "out/passwd"} & set(paths(branch))
    finally:
        (landing / "out").unlink()
        (landing / "passwd").unlink()


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("endpoint=http://127.0.0.1:9", "operator sets how a bucket is reached"),
        ("profile=admin", "operator sets how a bucket is reached"),
        ("region=x", "has the option 'region'"),
    ],
)
def test_a_caller_does_not_say_which_server_is_asked(option: str, reason: str) -> None:
    """Else the service would sign requests to a server of the caller's own."""
    with application(import_from=("s3://archive/raw/?endpoint=http://127.0.0.1:9",)) as app:
        app.lake.create_repository("sales")
        for kind in ("common_prefix", "object"):
            place = {"type": kind, "path": f"s3://archive/raw/x?{option}", "destination": "in/x"}
            answer = app(
                "POST", "repositories/sales/branches/main/import", json={"paths": [place], "commit": {"message": "x"}}
            )
            assert (answer.status_code, reason in answer.json()["message"]) == (
                400,
                True,
            )


def test_a_namespace_of_the_lake_is_refused_although_its_folder_is_allowed(local_service: Running) -> None:
    other = new_repository(local_service)
    other.branch("main").object("secret").upload(b"secret")
    objects = local_service.objects.partition("?")[0]
    repo = new_repository(local_service)
    for source in (
        f"{objects}/",
        objects.rpartition("/")[0] + "/",
        objects.replace("file:", "local:") + f"/{other.id}/",
    ):
        with pytest.raises(BadRequestException, match="namespace"):
            start(client_of(local_service), repo.id, source)


def test_staged_addresses_are_read_where_imports_may_be_and_nowhere_else(local_service: Running, landing: Path) -> None:
    repo = new_repository(local_service)
    outside = ("file:///etc/hostname", f"file://{landing.parent}/secret", "s3://elsewhere/x", "https://x.test/y")
    addresses = {"good": f"file://{landing}/a.csv", **{f"bad-{number}": url for number, url in enumerate(outside)}}
    with local_service.open() as lake:  # past the service, which stages no files but below these folders
        for path, url in addresses.items():
            lake.repository(repo.id).stage("main", path, url, size_bytes=13)
    with local_service.http() as http:
        for path in addresses:
            answer = http.get(f"repositories/{repo.id}/refs/main/objects", params={"path": path})
            if path == "good":
                assert answer.content == b"data of a.csv"
                continue
            assert (answer.status_code, answer.json()["code"]) == (403, "foreign_not_allowed")
            # what is named is told; the object itself is not asked
            head = http.head(f"repositories/{repo.id}/refs/main/objects", params={"path": path})
            assert head.status_code == 200


def test_without_import_from_an_import_is_refused_and_foreign_data_is_unreadable(tmp_path: Path, landing: Path) -> None:
    (tmp_path / "lake").mkdir()
    stores = embedded_urls(tmp_path / "lake")
    with serving(tmp_path / "with", *stores, environment={"REFSTORE_IMPORT_FROM": f"file://{landing}/"}) as running:
        repo = new_repository(running)
        repo.branch("main").import_data("x").prefix(f"file://{landing}/", "in/").run()
        assert client_of(running).storage_config.import_support
    with serving(tmp_path / "without", *stores) as running:
        branch = lakefs.Repository(repo.id, client_of(running)).branch("main")
        assert not client_of(running).storage_config.import_support
        with pytest.raises(ForbiddenException, match=r"setting import_from"):
            branch.import_data("x").prefix(f"file://{landing}/", "in/").start()
        assert branch.object("in/a.csv").stat().size_bytes == 13  # what is named is told, ...
        with pytest.raises(PermissionException):
            branch.object("in/a.csv").reader("r").read()  # ... and not read
        with running.http() as http:
            answer = http.get(f"repositories/{repo.id}/refs/main/objects", params={"path": "in/a.csv"})
            assert (answer.status_code, "import_from" in answer.json()["message"]) == (403, True)


def test_lakectls_requests_are_answered(local_service: Running, landing: Path) -> None:
    """`lakectl import --from local://... --to lakefs://REPO/main/in/ --message m --meta k=v`, as its source sends it
    (1.80).
    """
    repo = new_repository(local_service)
    with local_service.http() as http:
        storage = http.get("config").json()["storage_config"]
        assert storage["import_support"] is True
        assert re.search(storage["import_validity_regex"], f"local://{landing}/")
        assert http.get(f"repositories/{repo.id}/branches/main").status_code == 200
        place = {"destination": "in/", "path": f"local://{landing}/", "type": "common_prefix"}
        sent = {"commit": {"message": "m", "metadata": {"k": "v"}}, "paths": [place]}
        begun = http.post(f"repositories/{repo.id}/branches/main/import", json=sent)
        assert begun.status_code == 202
        told: dict[str, Any] = {}
        while not told.get("completed"):
            told = http.get(f"repositories/{repo.id}/branches/main/import", params=begun.json()).json()
            assert told.get("error") is None
        assert (told["ingested_objects"], told["commit"]["message"], told["commit"]["metadata"]) == (
            len(FILES),
            "m",
            {"k": "v"},
        )
        assert http.delete(f"repositories/{repo.id}/branches/main/import", params=begun.json()).status_code == 409


class TestStates:
    """In this process, with a listing that waits."""

    def test_cancelled_it_ends_and_commits_nothing(self, landing: Path) -> None:
        with application(import_from=(f"file://{landing}/",)) as app, Held() as held:
            head = app.lake.create_repository("sales").get_branch("main").head
            import_id = begin(app, landing)
            held.wait_until_listing()
            assert status(app, import_id)["completed"] is False
            assert app("DELETE", url(import_id)).status_code == 204
            held.go_on()
            held.wait_until_over()
            answer = status(app, import_id)
            assert "Canceled" in answer["error"]["message"]
            assert (answer["completed"], app.lake.repository("sales").get_branch("main").head) == (False, head)
            assert app("DELETE", url(import_id)).status_code == 409

    def test_no_more_are_under_way_than_a_process_takes(self, landing: Path) -> None:
        with (
            application(constants={"http.service.IMPORTS_AT_ONCE": 1}, import_from=(f"file://{landing}/",)) as app,
            Held() as held,
        ):
            app.lake.create_repository("sales")
            import_id = begin(app, landing)
            held.wait_until_listing()
            answer = app("POST", "repositories/sales/branches/main/import", json=body(landing))
            assert (answer.status_code, answer.json()["code"]) == (429, "too_many_imports")
            assert "retry-after" in answer.headers
            held.go_on()
            held.wait_until_over()
            assert status(app, import_id)["completed"] is True
            assert app("POST", "repositories/sales/branches/main/import", json=body(landing)).status_code == 202

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_one_whose_process_died_is_taken_up_by_whoever_asks(self, landing: Path) -> None:
        with application(import_from=(f"file://{landing}/",)) as app:
            app.lake.create_repository("sales")
            with Held() as dead:
                import_id = begin(app, landing)
                dead.wait_until_listing()
                dead.die()
            assert status(app, import_id)["completed"] is False
            app.clock.advance(3600)
            status(app, import_id)
            assert until_over(app, import_id)["completed"] is True
            assert app.lake.repository("sales").get_commit("main").message == "x"
            assert len(list(app.lake.repository("sales").log("main"))) == 2

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_one_that_died_behind_its_commit_has_landed_and_commits_no_second_time(
        self, landing: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with application(import_from=(f"file://{landing}/",)) as app:
            repo = app.lake.create_repository("sales")
            tell = BackgroundImports.change_record

            def die_at_the_end(imports: BackgroundImports, *given: Any, **changes: Any) -> Any:
                if changes.get("state") == COMPLETED:
                    raise SystemExit
                return tell(imports, *given, **changes)

            with monkeypatch.context() as patch:
                patch.setattr(BackgroundImports, "change_record", die_at_the_end)
                import_id = begin(app, landing)
                assert until_over(app, import_id)["completed"] is False
            landed = repo.get_branch("main").head
            assert app("DELETE", url(import_id)).status_code == 409  # its commit may be there
            app.clock.advance(3600)
            assert app("DELETE", url(import_id)).status_code == 409  # and it is
            status(app, import_id)
            told = until_over(app, import_id)
            assert (told["completed"], told["commit"]["id"]) == (True, landed)
            assert repo.get_branch("main").head == landed

    def test_a_service_that_is_stopped_leaves_its_imports_to_be_taken_up_at_once(self, landing: Path) -> None:
        with application(import_from=(f"file://{landing}/",)) as app:
            app.lake.create_repository("sales")
            service = app.app.state.service
            with Held() as held:
                import_id = begin(app, landing)
                held.wait_until_listing()
                stopping = threading.Thread(target=service.imports.close)
                stopping.start()
                wait_until(lambda: service.imports.is_closing)
                held.go_on()
                stopping.join(30)
            assert status(app, import_id)["completed"] is False  # this process ends, and takes up none
            service.imports = BackgroundImports(at_once=1)
            status(app, import_id)
            assert until_over(app, import_id)["completed"] is True

    def test_dirty_branches_and_missing_ones_are_told_at_once(self, landing: Path) -> None:
        with application(import_from=(f"file://{landing}/",)) as app:
            app.lake.create_repository("sales").upload("main", "x", b"x")
            answer = app("POST", "repositories/sales/branches/main/import", json=body(landing))
            assert (answer.status_code, answer.json()["code"]) == (400, "dirty_branch")
            assert app("POST", "repositories/sales/branches/none/import", json=body(landing)).status_code == 404
            assert app("GET", url("nothing")).status_code == 404
            assert app("DELETE", url("nothing")).status_code == 404

    def test_a_folder_that_becomes_a_link_before_it_is_listed_leads_nowhere(self, tmp_path: Path) -> None:
        folder = tmp_path / "allowed" / "source"
        folder.mkdir(parents=True)
        (folder / "a").touch()
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "name").touch()
        with application(import_from=(f"file://{tmp_path}/allowed/",)) as app, Held() as held:
            app.lake.create_repository("sales")
            import_id = begin(app, folder)
            held.wait_until_listing()
            folder.rename(tmp_path / "moved")
            folder.symlink_to(tmp_path / "secrets")
            held.go_on()
            held.wait_until_over()
            assert status(app, import_id)["completed"] is False
            assert "symbolic link" in status(app, import_id)["error"]["message"]

    def test_states_are_kept_for_a_week_after_their_end(self, landing: Path) -> None:
        with application(import_from=(f"file://{landing}/",)) as app:
            app.lake.create_repository("sales")
            import_id = begin(app, landing)
            assert until_over(app, import_id)["completed"] is True
            app.clock.advance(8 * 86_400)
            until_over(app, begin(app, landing))
            assert app("GET", url(import_id)).status_code == 404


class Held:
    """Listings of folders stop before their first page, until they may go on or die."""

    def __init__(self) -> None:
        self._listing, self._decided = threading.Event(), threading.Event()
        self._dies = False
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Held:
        real = LocalObjects.list_pages

        def held(store: LocalObjects, prefix: str = "", *, skipped: SkippedKeys) -> Iterator[ObjectPage]:
            self._listing.set()
            assert self._decided.wait(30)
            if self._dies:
                raise SystemExit  # the thread ends there, as if its process had
            yield from real(store, prefix, skipped=skipped)

        self._patch.setattr(LocalObjects, "list_pages", held)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        self._decided.set()
        self.wait_until_over()

    def wait_until_listing(self) -> None:
        assert self._listing.wait(30)

    def go_on(self) -> None:
        self._decided.set()

    def die(self) -> None:
        self._dies = True
        self._decided.set()

    def wait_until_over(self) -> None:
        join_imports()


def body(landing: Path) -> dict[str, Any]:
    source = {"type": "common_prefix", "path": f"file://{landing}/", "destination": "in/"}
    return {
        "paths": [source],
        "commit": {"message": "x", "metadata": {"at": "w" + secrets.token_hex(4)}, "allow_empty": True},
    }


def url(import_id: str) -> str:
    return f"repositories/sales/branches/main/import?id={import_id}"


def begin(app: Application, landing: Path) -> str:
    answer = app("POST", "repositories/sales/branches/main/import", json=body(landing))
    assert answer.status_code == 202, answer.text
    found: str = answer.json()["id"]
    return found


def status(app: Application, import_id: str) -> dict[str, Any]:
    found: dict[str, Any] = app("GET", url(import_id)).json()
    return found


def join_imports() -> None:
    """Wait for the imports that run in this process."""
    for thread in threading.enumerate():
        if thread.name.startswith("refstore-import-"):
            thread.join(30)


def until_over(app: Application, import_id: str) -> dict[str, Any]:
    join_imports()
    return status(app, import_id)
