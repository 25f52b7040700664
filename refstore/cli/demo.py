"""The command `refstore demo`: the main job on real files, from upload to audit."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Final

import typer

from refstore.cli.common import Progress, emit, invocation_of, loaded_of, progress
from refstore.core.file_modes import make_folder
from refstore.core.settings import Settings, embedded
from refstore.demo import pace, sources
from refstore.demo.main_job import MainJob
from refstore.demo.verdict import Verdict

app = typer.Typer()

READ_BACK: Final = 1000
"""How many blobs are read back from a remote store, where reading all would take longer than the job."""


@app.command("demo")
def demo(
    ctx: typer.Context,
    *,
    files: Annotated[
        int, typer.Option(min=sources.FILES_MIN, max=1_000_000, metavar="N", help="How many real files.")
    ] = 3000,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", exists=True, file_okay=False, help="Take them from here; default: this Python's files."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Repeat a random choice: the same seed chooses the same.")] = 1,
    check: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="How many live blobs to read back; default: all of a folder, 1000 elsewhere."
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the temporary folder: the lake, and the log of every process.")
    ] = False,
) -> int:
    """Watch uncommitted data being deleted, safely, while clients write: on real files, with an audit at the end.

    Several client processes upload, overwrite, copy, move, link, commit, merge, reset and delete on several branches,
    one is killed in the middle, and two reapers delete at the same time. Then everything left is audited, read back
    and compared. Without stores (--data, or --kv and --objects) the demo runs in a temporary folder. With stores it
    creates a repository there, and leaves it. The exit code is 1 if anything is lost, left over or altered.

    \b
    Example: refstore demo
             refstore demo --files 500 --keep
             refstore demo --kv redis://localhost/0 --objects s3://bucket/demo
    """
    loaded = loaded_of(ctx)
    began = monotonic()
    has_stores = loaded.origins["kv"].kind != "default"
    source_files = sources.choose(source, files, seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its processes are ended as after Ctrl-C
    folder = Path(tempfile.mkdtemp(prefix="refstore-demo-"))
    stores = loaded.settings if has_stores else _in(loaded.settings, folder / "lake")
    if stores.data is not None:
        make_folder(stores.data)
    kept = keep
    try:
        with MainJob(pace.settings(stores), source_files, seed=seed, screen=_Screen(began), folder=folder) as job:
            job.prepare()
            job.work()
            job.settle()
            everything = stores.objects.startswith("file:")
            verdict = job.verify(read_back=check if check is not None or everything else READ_BACK)
        kept |= not verdict.ok
        _show(ctx, verdict, seconds=monotonic() - began)
    except Exception:
        kept = True
        raise
    finally:
        if kept:
            print(f"{'' if has_stores else 'the lake and '}the log of every process: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if has_stores:
        print(
            f"the repository is left as it is; to delete it: refstore repo delete {verdict.repository}", file=sys.stderr
        )
    return 0 if verdict.ok else 1


class _Screen:
    def __init__(self, began: float) -> None:
        self._began = began

    def phase(self, text: str) -> None:
        print(f"[{monotonic() - self._began:5.1f} s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, description: str, total: int) -> Generator[Progress, None, None]:
        with progress(description, total) as bar:
            yield bar


def _in(settings: Settings, folder: Path) -> Settings:
    kv, objects = embedded(folder)
    return dataclasses.replace(settings, data=folder, kv=kv, objects=objects)


def _show(ctx: typer.Context, verdict: Verdict, *, seconds: float) -> None:
    if invocation_of(ctx).json:
        emit(
            ctx,
            {
                "repository": verdict.repository,
                "ok": verdict.ok,
                "seconds": round(seconds, 1),
                "lines": verdict.lines,
                "findings": verdict.findings,
                "notes": verdict.notes,
            },
        )
        return
    emit(ctx, ({"": line.what, "objects": line.objects, "size": _size(line.size_bytes)} for line in verdict.lines))
    for text in verdict.notes:
        print(text)
    for text in verdict.findings:
        print(text)
    if verdict.ok:
        print(f"Nothing that is named is gone, and nothing that is not named is left. {seconds:.0f} s.")
    else:
        print(f"The audit FAILED with {len(verdict.findings)} findings.")


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / (1 << 20):,.1f} MiB"
