"""The gateway as `refstore serve` runs it: beside the API, in each worker, over TLS, with S3 secrets of access keys."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import boto3
import httpx
import pytest
from botocore.config import Config

from refstore.configuration.settings import embedded_urls
from refstore.lake import open_lake_at
from refstore.service import s3_secrets
from tests.api.conftest import KEY_ID, serving
from tests.api.test_tls import Pair
from tests.commands import Command
from tests.s3.s3_service import address_of

SERVER_KEY = "a-server-key-for-the-secrets-of-s3-clients"


@pytest.mark.slow
def test_the_service_answers_s3_clients_over_tls_in_each_worker(tmp_path: Path) -> None:
    """boto3 sends trailers over TLS only, and its checksums without being asked."""
    pair = Pair(tmp_path / "chain.pem", tmp_path / "key.pem")
    pair.renew()
    (tmp_path / "lake").mkdir()
    urls = embedded_urls(tmp_path / "lake")
    arguments = ["--s3-port", "0", "--workers", "2", "--no-reaper"]
    arguments += ["--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key)]
    with serving(tmp_path, *urls, *arguments, environment={"REFSTORE_S3_SECRETS_KEY": SERVER_KEY}) as running:
        url = address_of(running)
        assert url.startswith("https://")
        with open_lake_at(*urls) as lake:
            lake.create_repository("lake")
            cipher = s3_secrets.read_cipher(SERVER_KEY, None)
            assert cipher is not None
            secret = s3_secrets.make_s3_secret(lake, cipher, KEY_ID, overlap_ms=0).secret
        client = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", verify=str(pair.certificate),
            aws_access_key_id=KEY_ID, aws_secret_access_key=secret, config=Config(s3={"addressing_style": "path"}),
        )  # fmt: skip
        for size in (0, 10, 3 << 20):
            put = client.put_object(Bucket="lake", Key=f"main/{size}", Body=b"x" * size)
            got = client.get_object(Bucket="lake", Key=f"main/{size}", ChecksumMode="ENABLED")
            assert (got["Body"].read(), got["ChecksumCRC32"]) == (b"x" * size, put["ChecksumCRC32"])
        trusting = ssl.create_default_context(cafile=str(pair.certificate))
        assert httpx.get(f"{running.url}/healthcheck", verify=trusting).status_code == 204
    lines = [json.loads(line) for line in running.log.read_text().splitlines() if line.startswith("{")]
    puts = [line for line in lines if line.get("route") == "s3:PutObject"]
    assert [(line["key"], line["repository"], line["branch"], line["status"]) for line in puts] == [
        (KEY_ID, "lake", "main", 200)
    ] * 3
    assert secret not in running.log.read_text()


def test_the_gateway_needs_a_server_key(refstore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refstore_api import server

    def serve_nothing(*_: object) -> None:
        raise AssertionError("the service started")

    monkeypatch.setattr(server, "serve_requests", serve_nothing)
    monkeypatch.delenv("REFSTORE_DATA")
    (tmp_path / "folder").mkdir()
    kv, objects = embedded_urls(tmp_path / "folder")
    monkeypatch.setenv("REFSTORE_KV", kv)
    monkeypatch.setenv("REFSTORE_OBJECTS", objects)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    refused = refstore("serve", "--port", "0", "--s3-port", "0", "--no-reaper")
    assert refused.code == 2
    assert "REFSTORE_S3_SECRETS_KEY" in refused.err
