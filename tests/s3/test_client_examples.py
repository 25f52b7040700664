"""What docs/s3.md shows of each client works as shown: its blocks are run against the service that they start."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import refstore
from tests.api.test_tls import Pair
from tests.integration.test_documentation import FENCED, ROOT, run_shell, script, typed
from tests.s3.test_clients import DUCKDB

SECTION = (ROOT / "docs/s3.md").read_text().partition("## Clients\n")[2].partition("\n## ")[0]
BEGINNING, *REST = re.split(r"^### (.*)\n", SECTION, flags=re.MULTILINE)
EXAMPLES = {name: blocks for name, text in zip(REST[::2], REST[1::2], strict=True) if (blocks := FENCED.findall(text))}
TRUST = EXAMPLES.pop("With TLS")
[DUCKDB_TRUST] = re.findall(r"^DuckDB needs `(.*)`\.", SECTION, re.MULTILINE)
ROW = "{'day': '2026-11-21', 'sales': 42}"
PRINTED = {
    "AWS CLI": [r"(?s:.*)upload: .* to s3://lake/main/aws/hello.txt *", r".* 6 hello.txt", "hello"],
    "boto3": [r"\['main/boto3/hello.txt'\]", "b'hello'"],
    "deltalake": [r"\['s3://lake/main/delta/sales/part-.*.parquet'\]", rf"\[{ROW}\]"],
    "DuckDB": [r"\[\('s3://lake/main/duckdb/sales.parquet',\)\]", r"\[\('2026-11-21', 42\)\]"],
    "obstore": [r"\['obstore/hello.txt'\]", r'Bytes\(b"hello"\)'],
    "pandas and s3fs": [r"\['lake/main/pandas/sales.csv'\]", r"\[\['2026-11-21', 42\]\]"],
    "Polars": [r"\[\('2026-11-21', 42, 's3://lake/main/polars/sales.parquet'\)\]"],
    "PyArrow": [r"\['lake/main/pyarrow/sales.parquet'\]", rf"\[{ROW}\]"],
    "PyIceberg": [r"\[\('shop', 'sales'\)\]", rf"\[{ROW}\]"],
    "Tables on branches": [r"(?s:.*)s3://warehouse/tables/shop.*", rf"\[{ROW}\]"],
    "rclone": [r"\[refstore\]", "type = s3", *[".*"] * 3, "hello.txt", "hello"],
}
"""What each example prints: what it listed and read back."""


def free_ports(amount: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(amount)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def with_tls(blocks: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Change an example as the page says."""
    connect = "db = duckdb.connect()\n"
    return [
        (
            kind,
            body.replace("http://", "https://")
            .replace("USE_SSL false", "USE_SSL true")
            .replace(connect, f"{connect}{DUCKDB_TRUST}\n"),
        )
        for kind, body in blocks
    ]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_examples_run_one_after_the_other(scheme: str, tmp_path: Path) -> None:
    """In one shell, in an empty folder. Other ports are taken, and DuckDB's `httpfs` lies where it would be downloaded
    to.
    """
    api_port, s3_port = free_ports(2)
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(DUCKDB),
        "AWS_EC2_METADATA_DISABLED": "true",
        "REFSTORE_API_PORT": str(api_port),
        "REFSTORE_S3_PORT": str(s3_port),
        "REFSTORE_REAPER_RESERVE": "0",
    }
    [extension] = DUCKDB.glob("duckdb_extension_httpfs/extensions/*/httpfs.duckdb_extension")
    platform = run_shell(
        "python -c 'import duckdb; print(*duckdb.sql(\"PRAGMA platform\").fetchone())'", tmp_path, environment
    )
    installed = tmp_path / ".duckdb/extensions" / extension.parent.name / platform.strip() / extension.name
    installed.parent.mkdir(parents=True)
    installed.symlink_to(extension)

    beginning, examples = FENCED.findall(BEGINNING), EXAMPLES
    if scheme == "https":
        pair = Pair(tmp_path / "chain.pem", tmp_path / "key.pem")
        pair.renew(authority=tmp_path / "ca.pem")
        environment["REFSTORE_API_TLS_CERTIFICATE"] = f"{pair.certificate},{pair.key}"
        beginning += TRUST
        examples = {name: with_tls(blocks) for name, blocks in EXAMPLES.items()}
    parts = [script(beginning)]
    for name, blocks in examples.items():
        parts += [f"echo '### {name}'", "(", *(typed(kind, body) for kind, body in blocks), ")"]
    out = run_shell(
        re.sub(r"(127\.0\.0\.1:|--s3-port )9000", rf"\g<1>{s3_port}", "\n".join(parts)), tmp_path, environment
    )
    _, *printed = re.split(r"^### (.*)\n", out, flags=re.MULTILINE)
    by_name = dict(zip(printed[::2], printed[1::2], strict=True))
    assert by_name.keys() == PRINTED.keys()
    for name, lines in PRINTED.items():
        assert re.fullmatch("\n".join(lines), by_name[name].strip()), f"{name}:\n{by_name[name]}"
    with refstore.create(tmp_path / "lake") as lake:
        folders = {item.path.partition("/")[0] for item in lake.repository("lake").list("main")}
        assert {item.path.partition("/")[0] for item in lake.repository("lake").list("dev")} == {"tables"}
    assert folders == {"aws", "boto3", "delta", "duckdb", "iceberg", "obstore", "pandas", "polars", "pyarrow", "rclone"}
