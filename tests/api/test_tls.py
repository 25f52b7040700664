"""TLS of the service's own: real clients over loopback, a renewed certificate, files that are wrong, handshakes that
never end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import lakefs
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from lakefs.client import Client

from refstore.configuration.settings import ApiSettings, embedded_urls
from refstore.errors import InvalidSettings
from refstore_api.server import ApiServer
from refstore_http.tls import Certificate
from tests.api.conftest import KEY_ID, SECRET, Running, serving
from tests.api.test_limits import wait_until
from tests.kit.short_durations import constants_environment

CONNECTIONS_MAX = 8


class Pair(NamedTuple):
    certificate: Path
    key: Path

    def renew(self, *, password: bytes = b"", authority: Path | None = None) -> int:
        """Write a new certificate and its key; the serial number. It is its own root, or that of a new authority, whose
        certificate is written to a file of its own.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        root_key = ec.generate_private_key(ec.SECP256R1()) if authority else key
        made = signed_certificate("lake.test", key, "root.test" if authority else "lake.test", root_key)
        if authority:
            root = signed_certificate("root.test", root_key, "root.test", root_key)
            authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        secrecy = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        self.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secrecy))
        return made.serial_number


def signed_certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """A certificate for 127.0.0.1; an authority's, if it signs itself."""
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=subject == issuer, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    found = Pair(tmp_path / "chain.pem", tmp_path / "key.pem")
    found.renew()
    return found


def arguments(pair: Pair) -> tuple[str, ...]:
    return ("--no-reaper", "--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key))


@pytest.fixture(scope="module")
def served_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The pair of `secure`. A test that renews it ends when the service has read a valid one."""
    folder = tmp_path_factory.mktemp("pair")
    found = Pair(folder / "chain.pem", folder / "key.pem")
    found.renew()
    return found


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, served_pair: Pair) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("secure")
    (folder / "lake").mkdir()
    environment = constants_environment({"ApiSettings": {"connections_max": CONNECTIONS_MAX}})
    with serving(folder, *embedded_urls(folder / "lake"), *arguments(served_pair), environment=environment) as running:
        yield running


def where(running: Running) -> tuple[str, int]:
    host, port = running.url.removeprefix("https://").split(":")
    return host, int(port)


def serial_of(running: Running) -> int:
    pem = ssl.get_server_certificate(where(running), timeout=20)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def http(running: Running, pair: Pair) -> httpx.Client:
    trust = ssl.create_default_context(cafile=str(pair.certificate))
    return httpx.Client(base_url=f"{running.url}/api/v1", auth=(KEY_ID, SECRET), verify=trust, timeout=20)


def connections_of(client: Any) -> list[Any]:
    """httpx tells nobody which connection it used."""
    return list(client._transport._pool.connections)


def test_clients_work_over_https(secure: Running, served_pair: Pair) -> None:
    with http(secure, served_pair) as client:
        made = client.post("/repositories", json={"name": "sales", "storage_namespace": "local://sales"})
        assert made.status_code == 201, made.text
    lake = Client(host=secure.url, username=KEY_ID, password=SECRET, ssl_ca_cert=str(served_pair.certificate))
    branch = lakefs.Repository("sales", lake).branch("main")
    body = os.urandom(3 << 20)
    branch.object("a").upload(body)
    with branch.object("a").reader("rb") as reader:
        assert reader.read() == body
    assert branch.commit("first").get_commit().message == "first"
    with http(secure, served_pair) as client:
        url = client.get("/repositories/sales/refs/main/objects", params={"path": "a", "presign": True}).headers[
            "location"
        ]
        assert url.startswith(f"{secure.url}/")
        assert client.get(url).content == body


def test_plain_http_is_not_answered(secure: Running) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https", "http") + "/healthcheck")


def test_a_renewed_certificate_is_shown_and_no_connection_is_dropped(secure: Running, served_pair: Pair) -> None:
    first = serial_of(secure)
    with http(secure, served_pair) as client:
        assert client.get("/user").status_code == 200
        before = connections_of(client)
        second = served_pair.renew()
        os.kill(secure.process.pid, signal.SIGHUP)
        wait_until(lambda: serial_of(secure) == second)
        assert client.get("/user").status_code == 200  # which trusts the first only
        assert connections_of(client) == before
    assert second != first


@pytest.mark.parametrize("wrong", ["key", "certificate", "missing"])
def test_a_renewal_that_is_wrong_leaves_the_old_certificate(secure: Running, served_pair: Pair, wrong: str) -> None:
    first = serial_of(secure)
    keep = served_pair.key.read_bytes()
    served_pair.renew()
    if wrong == "key":
        served_pair.key.write_bytes(keep)  # of the old certificate
    elif wrong == "certificate":
        served_pair.certificate.write_text("no certificate")
    else:
        served_pair.certificate.unlink()
    refused = secure.log.read_text().count("tls_certificate_not_reloaded")
    os.kill(secure.process.pid, signal.SIGHUP)
    wait_until(lambda: secure.log.read_text().count("tls_certificate_not_reloaded") > refused)
    assert serial_of(secure) == first
    third = served_pair.renew()
    os.kill(secure.process.pid, signal.SIGHUP)
    wait_until(lambda: serial_of(secure) == third)


@pytest.mark.slow
def test_all_workers_read_a_renewed_certificate(tmp_path: Path, pair: Pair) -> None:
    (tmp_path / "lake").mkdir()
    with serving(tmp_path, *embedded_urls(tmp_path / "lake"), *arguments(pair), "--workers", "2") as running:
        wait_until(lambda: serial_of(running) > 0)
        second = pair.renew()
        os.kill(running.process.pid, signal.SIGHUP)
        wait_until(lambda: {serial_of(running) for _ in range(20)} == {second})


def test_a_certificate_that_is_renewed_while_a_process_starts_is_read(pair: Pair) -> None:
    """Between its first read and its handler the process ignores SIGHUP."""
    certificate = Certificate(pair.certificate, pair.key)
    before = certificate.context
    pair.renew()

    async def start() -> None:
        with ApiServer(uvicorn.Config(lambda: None), None, certificate).capture_signals():
            assert certificate.context is not before

    asyncio.run(start())


def test_connections_without_a_handshake_take_slots_and_give_them_back(secure: Running, served_pair: Pair) -> None:
    """Else whoever connects and sends nothing could hold as many as there are files."""
    waiting = [socket.create_connection(where(secure), source_address=("127.0.0.66", 0)) for _ in range(12)]
    try:
        closed = 0
        for connection in waiting[4:]:
            connection.settimeout(20)
            try:
                closed += connection.recv(1) == b""
            except ConnectionResetError:
                closed += 1
        assert closed == 8
        with http(secure, served_pair) as client:
            assert client.get("/user").status_code == 200  # from another address
    finally:
        for connection in waiting:
            connection.close()

    def is_free() -> bool:
        try:
            with socket.create_connection(where(secure), source_address=("127.0.0.66", 0)) as plain:
                context = ssl.create_default_context(cafile=str(served_pair.certificate))
                with context.wrap_socket(plain, server_hostname="127.0.0.1"):
                    return True
        except OSError:
            return False

    wait_until(is_free)


def test_a_request_in_one_flight_with_the_handshakes_end_is_answered(secure: Running, served_pair: Pair) -> None:
    context = ssl.create_default_context(cafile=str(served_pair.certificate))
    for _ in range(20):
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(into, out, server_hostname="127.0.0.1")
        with socket.create_connection(where(secure), timeout=20) as plain:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(out.read())
                    into.write(plain.recv(65536))
            tls.write(b"GET /healthcheck HTTP/1.1\r\nHost: lake\r\nConnection: close\r\n\r\n")
            plain.sendall(out.read())
            answer = b""
            while b"\r\n\r\n" not in answer:
                try:
                    answer += tls.read()
                except ssl.SSLWantReadError:
                    into.write(plain.recv(65536))
        assert answer.startswith(b"HTTP/1.1 20")


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("none.pem", "key.pem", "none.pem cannot be read"),
        ("chain.pem", "none.pem", "none.pem cannot be read"),
        ("key.pem", "key.pem", "are not a certificate and its key"),
        ("chain.pem", "other.pem", "are not a certificate and its key"),
        ("chain.pem", "locked.pem", "without a password"),
        ("chain.pem", "", "are not a certificate and its key"),
    ],
)
def test_a_wrong_file_is_an_error_at_the_start(
    tmp_path: Path, pair: Pair, certificate: str, key: str, message: str
) -> None:
    Pair(tmp_path / "other-chain.pem", tmp_path / "other.pem").renew()
    Pair(tmp_path / "locked-chain.pem", tmp_path / "locked.pem").renew(password=b"secret")
    with pytest.raises(InvalidSettings, match=message):
        Certificate.from_settings(
            ApiSettings(tls_certificate=tuple(str(tmp_path / name) for name in (certificate, key) if name))
        )


def test_the_command_ends_with_the_error_of_a_wrong_file(tmp_path: Path, pair: Pair) -> None:
    pair.key.unlink()
    found = subprocess.run(
        [sys.executable, "-m", "refstore", "--data", str(tmp_path / "lake"), "serve", "--port", "0", *arguments(pair)],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert "key.pem cannot be read" in found.stderr
    assert "Traceback" not in found.stderr
