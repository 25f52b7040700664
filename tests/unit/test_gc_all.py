"""`refstore gc run --all`: repositories do not answer for one another."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from offline_gc import run
from offline_gc.run import Options
from refstore.cli.gc import _all, _Job  # pyright: ignore[reportPrivateUsage]
from refstore.errors import Conflict
from refstore.lake import Lake
from refstore.settings import embedded


def test_a_repository_in_which_something_is_wrong_keeps_no_other_from_being_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def collect(ctx: Any, *_: object) -> Any:
        asked.append(ctx.name)
        if ctx.name == "broken":
            raise Conflict("mark x is being made; wait for it, or take it over if it is dead")
        return SimpleNamespace(swept=(), waiting=(), failed=0, marked=None, latest=None)

    monkeypatch.setattr(run, "run", collect)
    kv, objects = embedded(tmp_path)
    with Lake.open(kv, f"{objects}?fsync=0") as lake:
        repos = [lake.create_repository(name) for name in ("broken", "sales")]
        job = cast(_Job, SimpleNamespace(what="run", options=Options, rules=None))
        *_, troubles = _all(repos, job, cast(Any, None), None)
    assert [(name, type(error)) for name, error in troubles] == [("broken", Conflict)]
    assert asked == ["broken", "sales"]
