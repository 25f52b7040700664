"""What `verify` reads of one object, against what a run reads of it: random text, most of it malformed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from refstore.purge_document.document import Dataset
from refstore_purge.formats import csv, json_lines
from refstore_purge.formats.base import IdKind
from refstore_purge.purge_error import PurgeError
from refstore_purge.purge_ids import IdSet
from refstore_purge.verify_ids import VerifyReadError, WantedIds
from tests.purge.looking import dataset_ids, id_set, rows_left, task

CSV_PARTS = ["guest", "n", ",", ",", "\n", "\n", "\r\n", "\r", '"', '""', '"bob"', "bob", "7", "", "\\", "ö", "\0"]
JSON_PARTS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"guest":',
    '"bob"',
    "7",
    "1.5",
    "null",
    "true",
    "\n",
    "\n",
    " ",
]
JSON_LINES = [
    '{"guest":"bob"}',
    '{"guest":["ann","bob"],"n":1}',
    '{"guest":{"a":"bob"}}',
    '{"guest":7}',
    '{"n":1}',
    '{"guest":null}',
    '{"guest":-7}',
    "",
    '{"guest":"b\\u006fb"}',
    '{"GUEST":null,"n":1}',
    '{"Guest":"ann"}',
    '{"guest":null,"guesT":{"a":7}}',
    '{"guest":"ann","GUEST":"bob"}',
]


def outcome_of_run(format_: str, body: bytes, ids: IdSet, dataset: Dataset) -> int | None:
    module = csv if format_ == "csv" else json_lines
    what = task(dataset.identifier, map_part=dataset.map_part, set_null=dataset.set_null)
    try:
        return module.find(io.BytesIO(body), what, ids).matched_rows
    except PurgeError:
        return None


def outcome_of_verify(body: bytes, ids: WantedIds, dataset: Dataset) -> int | None:
    try:
        return rows_left(body, dataset, ids)
    except VerifyReadError:
        return None


def texts(rng: random.Random, format_: str) -> Iterator[str]:
    while True:
        if format_ == "csv":
            header = rng.choice(["guest,n\n", "n,guest\r\n", "guest\n", '"guest",n\n', "\ufeffguest,n\n"])
            width = header.count(",") + 1
            rows = "".join(
                ",".join(
                    rng.choice(["bob", '"bob"', "", '""', "7", "-7", '"a""b"', '"a\nb"', "ö"]) for _ in range(width)
                )
                + rng.choice(["\n", "\r\n"])
                for _ in range(rng.randrange(4))
            )
            yield header + rows
            yield header + rows + "".join(rng.choices(CSV_PARTS, k=rng.randrange(1, 5)))
            yield "".join(rng.choices(CSV_PARTS, k=rng.randrange(9)))
        else:
            yield "\n".join(rng.choices(JSON_LINES, k=rng.randrange(4)))
            yield "\n".join(rng.choices(JSON_LINES, k=2)) + "".join(rng.choices(JSON_PARTS, k=rng.randrange(5)))


@pytest.mark.parametrize("set_null", [(), ("n",)])
@pytest.mark.parametrize("kind", ["string", "integer"])
@pytest.mark.parametrize("format_", ["csv", "json"])
def test_text_is_read_as_a_run_reads_it(format_: Any, kind: IdKind, set_null: tuple[str, ...]) -> None:
    rng = random.Random(1)
    values: list[Any] = [7, 2**63] if kind == "integer" else ["bob", "", 'a"b', "ö", "7"]
    ids = id_set(*values, kind=kind, type_=pa.uint64() if kind == "integer" else None)
    wanted = dataset_ids(*values, kind=kind, type_=pa.uint64() if kind == "integer" else None)
    packers = [bytes, bytes, gzip.compress, bz2.compress, lzma.compress]
    outcomes: dict[bool, int] = {}
    for _, text in zip(range(1500), texts(rng, format_), strict=False):
        dataset = Dataset("d", "d/", "guest", "rewrite", format_, rng.choice(["key", "value"]), set_null)
        body = rng.choice(packers)(text.encode(rng.choice(["utf-8", "utf-8", "latin-1"]), "replace"))
        if rng.random() < 0.1:
            body = body[: rng.randrange(len(body) + 1)] + rng.choice([b"", b"\0", b"x"])
        by_run, by_verify = outcome_of_run(format_, body, ids, dataset), outcome_of_verify(body, wanted, dataset)
        ends_in_return = by_run is None and "\r" in (text[-1:], body[-1:].decode("latin-1"))
        assert by_run == by_verify or ends_in_return, (body, dataset, by_run, by_verify)  # which `csv` takes for an end
        outcomes[by_run is None] = outcomes.get(by_run is None, 0) + 1
    assert min(outcomes.values()) > 100  # both are tried
