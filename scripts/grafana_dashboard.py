"""Write the dashboard of deploy/grafana. Every query names a metric of `refstore/monitoring/metrics.py`.

.venv/bin/python scripts/grafana_dashboard.py > deploy/grafana/refstore.json
"""

from __future__ import annotations

import sys
from typing import Final

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from refstore.monitoring import metrics
from refstore.monitoring.metrics import Metric

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")
_UNITS: Final = {"seconds": "s", "bytes": "decbytes"}
WIDTH: Final = 12
HEIGHT: Final = 8


def query(expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend)


def number(title: str, expression: str, metric: Metric) -> stat.Panel:
    return (
        stat.Panel()
        .title(title)
        .description(metric.help)
        .unit(_UNITS.get(metric.unit, "short"))
        .datasource(SOURCE)
        .with_target(query(expression, ""))
        .height(4)
        .span(6)
    )


def lines(title: str, metric: Metric, expression: str, legend: str = "{{repository}}") -> timeseries.Panel:
    return (
        timeseries.Panel()
        .title(title)
        .description(metric.help)
        .unit(_UNITS.get(metric.unit, "short"))
        .datasource(SOURCE)
        .with_target(query(expression, legend))
        .height(HEIGHT)
        .span(WIDTH)
    )


def of(metric: Metric) -> str:
    """Return the metric's series of the chosen repositories."""
    return f'{metric.series_name}{{repository=~"$repository"}}'


def rate(metric: Metric) -> str:
    return f"sum by (repository) (rate({of(metric)}[$__rate_interval]))"


def main() -> None:
    board = (
        dashboard.Dashboard("refstore")
        .uid("refstore")
        .tags(["refstore"])
        .refresh("1m")
        .time("now-7d", "now")
        .timezone("utc")
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("repository")
            .datasource(SOURCE)
            .query(f"label_values({metrics.REPOSITORY_MEASURED.series_name}, repository)")
            .multi(True)
            .include_all(True)
        )
        .with_row(dashboard.Row("Now"))
        .with_panel(
            number(
                "Repositories where deletion is stopped",
                f"sum({of(metrics.REPOSITORY_DELETION_STOPPED)})",
                metrics.REPOSITORY_DELETION_STOPPED,
            )
        )
        .with_panel(
            number(
                "Marks that wait for an operator",
                f"sum({of(metrics.REPOSITORY_QUESTIONS)})",
                metrics.REPOSITORY_QUESTIONS,
            )
        )
        .with_panel(number("Due", f"sum({of(metrics.REPOSITORY_DUE_BYTES)})", metrics.REPOSITORY_DUE_BYTES))
        .with_panel(
            number(
                "Since the oldest successful run",
                f"time() - min({of(metrics.REPOSITORY_LAST_RUN)})",
                metrics.REPOSITORY_LAST_RUN,
            )
        )
        .with_row(dashboard.Row("What is there"))
        .with_panel(lines("Live", metrics.REPOSITORY_LIVE_BYTES, of(metrics.REPOSITORY_LIVE_BYTES)))
        .with_panel(lines("Staged", metrics.REPOSITORY_STAGED_BYTES, of(metrics.REPOSITORY_STAGED_BYTES)))
        .with_panel(lines("In grace", metrics.REPOSITORY_IN_GRACE_BYTES, of(metrics.REPOSITORY_IN_GRACE_BYTES)))
        .with_panel(lines("Due", metrics.REPOSITORY_DUE_OBJECTS, of(metrics.REPOSITORY_DUE_OBJECTS)))
        .with_panel(lines("Marked", metrics.REPOSITORY_MARKED_OBJECTS, of(metrics.REPOSITORY_MARKED_OBJECTS)))
        .with_panel(lines("Orphans", metrics.REPOSITORY_ORPHAN_OBJECTS, of(metrics.REPOSITORY_ORPHAN_OBJECTS)))
        .with_row(dashboard.Row("What is deleted"))
        .with_panel(lines("Reapers: objects", metrics.REAPER_DELETED, rate(metrics.REAPER_DELETED)))
        .with_panel(lines("Reapers: bytes", metrics.REAPER_DELETED_BYTES, rate(metrics.REAPER_DELETED_BYTES)))
        .with_panel(
            lines("Refused by the store", metrics.REPOSITORY_REFUSED_OBJECTS, of(metrics.REPOSITORY_REFUSED_OBJECTS))
        )
        .with_row(dashboard.Row("The service"))
        .with_panel(
            lines(
                "Requests",
                metrics.API_REQUESTS,
                f"sum by (status) (rate({metrics.API_REQUESTS.series_name}[$__rate_interval]))",
                "{{status}}",
            )
        )
        .with_panel(
            lines(
                "Time to answer, 99th percentile",
                metrics.API_SECONDS,
                f"histogram_quantile(0.99, sum by (le) "
                f"(rate({metrics.API_SECONDS.series_name}_bucket[$__rate_interval])))",
                "p99",
            )
        )
        .with_panel(
            lines("The KV's answer", metrics.KV_PROBE_SECONDS, metrics.KV_PROBE_SECONDS.series_name, "{{instance}}")
        )
        .with_panel(lines("Errors of the reapers", metrics.REAPER_ERRORS, rate(metrics.REAPER_ERRORS)))
    )
    sys.stdout.write(JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n")


if __name__ == "__main__":
    main()
