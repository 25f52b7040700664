"""Write docs/metrics.md from the declarations in refstore/monitoring/metrics.py.

.venv/bin/python scripts/metrics_table.py > docs/metrics.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from refstore.monitoring.metrics import LABELS, METRICS

HEAD = """# Metrics

Every metric that refstore's processes serve, for Prometheus. `scripts/metrics_table.py` writes this page.
[operating.md](operating.md#what-to-watch) says who serves what, and where alerts and a dashboard are. The end of a name
is its unit.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def lines() -> Iterator[str]:
    yield HEAD
    for metric in METRICS:
        labels = ", ".join(metric.labels)
        yield f"| `{metric.series_name}` | {metric.kind} | {labels} | {metric.help} |\n"
    yield "\n## Labels\n\nEach has a bounded number of values.\n\n| label | values |\n|---|---|\n"
    for label, values in LABELS.items():
        yield f"| `{label}` | {values} |\n"


if __name__ == "__main__":
    sys.stdout.writelines(lines())
