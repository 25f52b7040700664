"""What a bounded run of killed processes came to; how long it goes on, and its seed, which is printed.

Everything that can be decided beforehand is decided by the seed: `REFSTORE_CHAOS_SEED=7 REFSTORE_CHAOS_SECONDS=600
pytest -m soak -s -k gc_chaos` runs it again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SECONDS = float(os.environ.get("REFSTORE_CHAOS_SECONDS", "10"))
SEED = int(os.environ.get("REFSTORE_CHAOS_SEED", "0")) or random.SystemRandom().randrange(10**9)


@dataclass
class Result:
    findings: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """What operations of clients came to."""
    runs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What runs of the offline job and of the purge came to."""

    def count_outcomes(self) -> None:
        self.counts["operations told"] = self.outcomes.total()
        self.counts["of them acknowledged"] = self.count_of("ok")
        if not self.counts["of them acknowledged"]:
            self.findings.append("no operation was acknowledged: this run proved nothing")

    def count_of(self, outcome: str) -> int:
        return sum(count for (_, each), count in self.outcomes.items() if each == outcome)

    def table(self) -> str:
        lines = [f"{name:44s} {count:8d}" for name, count in self.counts.items()]
        lines += [f"run: {run}" for run in self.runs]
        by_op: dict[str, list[str]] = {}
        for (op, outcome), count in sorted(self.outcomes.items()):
            by_op.setdefault(op, []).append(f"{outcome} {count}")
        lines += [f"{op:24s} {', '.join(told)}" for op, told in by_op.items()]
        return "\n".join([f"REFSTORE_CHAOS_SEED={SEED}", *lines])

    def check(self) -> None:
        print(self.table())
        assert not self.findings, f"REFSTORE_CHAOS_SEED={SEED}: {'; '.join(self.findings)}"
