"""Servers of the tests start although another program took a port that was free when they chose it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import s3_base, s3_ceph
from tests.servers.s3_base import BUCKET, S3Server
from tests.servers.s3_servers import CephRgw, RcloneS3, need_ceph
from tests.servers.starting import ServerEndedError

TakePort = Callable[[object, int], None]


@pytest.fixture
def take_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[TakePort]:
    """Have another program bind the nth port that a module chooses, right after it was chosen."""
    others: list[socket.socket] = []

    def take(module: object, nth: int) -> None:
        ports: list[int] = []

        def free_port() -> int:
            ports.append(real())
            if len(ports) == nth:
                other = socket.socket()
                others.append(other)
                other.bind(("127.0.0.1", ports[-1]))
                other.listen()
            return ports[-1]

        real = s3_base.free_port
        monkeypatch.setattr(module, "free_port", free_port)

    yield take
    for other in others:
        other.close()


def serves(server: S3Server) -> bool:
    with server.client() as client:
        return [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == [BUCKET]


def test_rclone_moves_on_to_another_port(tmp_path: Path, take_port: TakePort) -> None:
    take_port(s3_base, 1)
    server = RcloneS3(tmp_path / "rclone")
    taken = server.port
    with server:
        assert server.port != taken
        assert serves(server)


def test_a_port_that_was_given_is_kept(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ServerEndedError, match="address already in use"):
            RcloneS3(tmp_path / "rclone", port=other.getsockname()[1]).start()


def test_a_monitor_of_ceph_moves_on_to_another_port(tmp_path: Path, take_port: TakePort) -> None:
    need_ceph()
    take_port(s3_ceph, 1)
    with CephRgw(tmp_path / "ceph") as server:
        assert serves(server)
