"""Where a run took place: what its numbers depend on, and nothing that names the machine or its owner."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import apsw

from tests.servers.redis_servers import redis_binary

_PACKAGES: Final = (
    "apsw",
    "redis",
    "hiredis",
    "boto3",
    "pyarrow",
    "msgspec",
    "pyspark",
    "duckdb",
    "deltalake",
    "icechunk",
    "pylance",
)


def describe() -> dict[str, str]:
    """One line for each thing that matters, in the order in which it is printed."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _said("git", "describe", "--always", "--dirty", "--exclude=*") or "unknown",
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
        "servers": ", ".join(filter(None, (_said(redis_binary(), "--version").split(" sha=")[0], _ceph()))),
        "sqlite": apsw.sqlite_lib_version(),
    }


def load() -> str:
    """How busy the machine is: more than it has cores, and others were at work beside the benchmarks."""
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _ceph() -> str:
    return " ".join(_said("radosgw", "--version").split()[:3]) if shutil.which("radosgw") else ""


def _said(*command: str) -> str:
    """The first line that a command prints; '' if it cannot be run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, cwd=Path(__file__).parents[1]
        )
    except OSError:
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""
