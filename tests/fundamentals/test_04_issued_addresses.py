from __future__ import annotations

import jwt
import pytest

from refstore.errors import AlreadyLinked, InvalidPath, InvalidToken, ObjectNotFound
from refstore.lake import Lake
from refstore.operations.upload import IssuedAddress
from refstore.repository import Repository
from tests.kit.clock import FakeClock


@pytest.fixture
def issued(repo: Repository) -> IssuedAddress:
    """An issued address with data in it."""
    given = repo.issue("main", "a")
    repo.context.objects.put(given.address, b"external")
    return given


def test_it_links_once(repo: Repository, issued: IssuedAddress) -> None:
    repo.link("main", "a", issued.token)
    with pytest.raises(AlreadyLinked):
        repo.link("main", "a", issued.token)


def test_not_again_after_the_commit_either(repo: Repository, issued: IssuedAddress) -> None:
    repo.link("main", "a", issued.token)
    repo.commit("main", "a")
    with pytest.raises(AlreadyLinked):
        repo.link("main", "a", issued.token)


def test_only_for_its_path_and_branch(repo: Repository, issued: IssuedAddress) -> None:
    repo.create_branch("feature", source="main")
    with pytest.raises(InvalidToken, match="another branch or path"):
        repo.link("main", "b", issued.token)
    with pytest.raises(InvalidToken, match="another branch or path"):
        repo.link("feature", "a", issued.token)
    repo.link("main", "a", issued.token)


def test_only_in_its_repository(lake: Lake, repo: Repository, issued: IssuedAddress) -> None:
    other = lake.create_repository("other")
    with pytest.raises(InvalidToken):
        other.link("main", "a", issued.token)


def test_only_before_it_expires(repo: Repository, issued: IssuedAddress, clock: FakeClock) -> None:
    clock.advance(3601)
    with pytest.raises(InvalidToken, match="expired"):
        repo.link("main", "a", issued.token)


def test_only_when_the_data_is_there(repo: Repository) -> None:
    with pytest.raises(ObjectNotFound, match="nothing was uploaded"):
        repo.link("main", "a", repo.issue("main", "a").token)


def test_only_if_the_data_is_what_the_writer_says(repo: Repository, issued: IssuedAddress) -> None:
    with pytest.raises(InvalidPath, match="8 bytes, not 9"):
        repo.link("main", "a", issued.token, size_bytes=9)
    repo.link("main", "a", issued.token, size_bytes=8)


def test_a_forged_token_is_refused_whatever_it_says(repo: Repository, issued: IssuedAddress) -> None:
    claims = jwt.decode(issued.token, options={"verify_signature": False})
    kid = jwt.get_unverified_header(issued.token)["kid"]
    other_key = jwt.encode(claims, "k" * 32, algorithm="HS256", headers={"kid": kid})
    unsigned = jwt.encode(claims, None, algorithm="none", headers={"kid": kid})
    no_key_id = jwt.encode(claims, "k" * 32, algorithm="HS256")
    head, payload, signature = issued.token.split(".")
    for forged in (
        other_key,
        unsigned,
        no_key_id,
        f"{head}.{payload}.",
        f"{head}.{payload}.{signature[:-4]}AAAA",
        "",
        "x",
        "a.b.c",
    ):
        with pytest.raises(InvalidToken):
            repo.link("main", "a", forged)
