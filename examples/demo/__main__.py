"""The command: run the main job, audit what is left, and show it. It exits with 1 if the audit finds anything."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from examples.command_line import make_parser
from examples.demo.final_audit import AuditResult
from examples.demo.main_job import open_main_job
from examples.demo.processes import ProcessFailed
from examples.demo.source_files import FILES_MIN, choose_files
from refstore import RefstoreError
from refstore.errors import Invalid

DESCRIPTION = """\
Watch uncommitted data being deleted, safely, while clients write. Client processes upload, overwrite, copy, move, link,
commit, merge, reset and delete real files, one of them through the S3 gateway; one is killed, and two reapers delete at
the same time. Then everything left is read back and compared. Without stores the demo runs in a temporary folder. With
stores it creates a repository there, and leaves it. The exit code is 1 if anything is lost, left over or altered.
"""
EPILOG = """\
examples:
  make demo
  make demo ARGS='--source ~/project --files 5000'
  make demo ARGS='--kv redis://localhost/0 --objects s3://bucket/demo'
  make demo ARGS='--kv postgresql://user@localhost/demo --objects s3://bucket/demo'
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("examples.demo", DESCRIPTION, EPILOG)
    parser.add_argument("--files", type=int, default=3000, metavar="N", help="how many real files; default: 3000")
    parser.add_argument("--source", type=Path, metavar="DIR", help="take them from here; default: this Python's files")
    parser.add_argument("--data", metavar="DIR", help="the folder of an embedded lake, which is kept")
    parser.add_argument("--kv", metavar="URL", help="the key-value store; with --objects")
    parser.add_argument("--objects", metavar="URL", help="the object store; with --kv")
    options = parser.parse_args(arguments)
    if options.files < FILES_MIN:
        parser.error(f"--files is at least {FILES_MIN}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its processes are ended as after Ctrl-C
    try:
        return _run(options)
    except KeyboardInterrupt:
        return 130
    except (RefstoreError, ProcessFailed) as error:
        print(f"examples.demo: {error}", file=sys.stderr)
        return 2 if isinstance(error, Invalid) else 1


def _run(options: argparse.Namespace) -> int:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", file=sys.stderr, flush=True)

    given = {"data": options.data, "kv": options.kv, "objects": options.objects}
    stores = {name: str(value) for name, value in given.items() if value is not None}
    folder = Path(tempfile.mkdtemp(prefix="refstore-demo-"))
    is_kept = True
    try:
        files = choose_files(options.source, options.files)
        with open_main_job(stores or {"data": str(folder / "lake")}, files, folder, say) as job:
            job.run()
            say("the audit: all that is named is read back and compared, and nothing else may be left")
            result = job.audit()
            job.end()
        _show(result, seconds=time.monotonic() - began)
        is_kept = bool(result.findings)
    except (KeyboardInterrupt, Invalid):
        is_kept = False
        raise
    finally:
        if is_kept:
            print(f"{'' if stores else 'the lake and '}the log of every process: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if stores:
        print(f"the repository stays; to delete it: refstore repo delete {job.repo.name}", file=sys.stderr)
    return 1 if result.findings else 0


def _show(result: AuditResult, *, seconds: float) -> None:
    print(f"{'':32}  objects          size")
    for what, objects, size_bytes in result.rows:
        print(f"{what:32}  {objects:7}  {size_bytes / (1 << 20):8,.1f} MiB")
    for finding in result.findings:
        print(finding)
    if result.findings:
        print(f"The audit FAILED with {len(result.findings)} findings.")
    else:
        print(f"Nothing that is named is gone, and nothing that is not named is left. {seconds:.0f} s.")


if __name__ == "__main__":
    sys.exit(main())
