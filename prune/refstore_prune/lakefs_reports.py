"""Compare the mark of a run with a report of lakeFS's own collector, and write the mark as lakeFS writes its reports.

    <namespace>/_lakefs/retention/gc/unified/<run id>/    of its Spark job: deleted/*.parquet, summary.json
    <namespace>/_lakefs/retention/gc/reports/<run id>/    of lakefs-sgc: deleted.csv, summary.json

Both have one column, `address`, relative to the namespace. What is written here lies where the caller says: nothing is
written into lakeFS's own folder.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from importlib import import_module
from io import BytesIO
from typing import Any, Final

import msgspec

from refstore.core.arrow_arrays import make_array
from refstore.core.clock import format_utc
from refstore.errors import Corrupt, Invalid, NotFound, ObjectNotFound
from refstore.objects import make_objects, open_objects
from refstore.objects.base import ObjectStore
from refstore_gc.untyped_arrow import pa, pc, pq
from refstore_prune.resolve_names import NameResolver
from refstore_prune.sources.lakefs.committed import FOLDER
from refstore_prune.state import LastMark, last_mark, read_unit

EXAMPLES_MAX: Final = 20
_CSV: Final = "deleted.csv"
_PARQUET: Final = "deleted/"
_SUMMARY: Final = "summary.json"
_csv: Final[Any] = import_module("pyarrow.csv")


class CollectorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a report, as lakeFS has it."""

    run_id: str
    success: bool
    first_slice: str = ""
    start_time: str = ""
    cutoff_time: str = ""
    num_deleted_objects: int


class ReportComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects two collectors would delete."""

    namespace: str
    our_run: str
    their_run: str
    both: int
    only_ours: int
    only_theirs: int
    """Such as what a tag or a rule of refstore's keeps, what was protected, and what was named since."""
    examples_only_ours: list[str]
    examples_only_theirs: list[str]


def compare(store_url: str, report_url: str, *, state: str | None = None, namespace: str = "") -> ReportComparison:
    """Compare the last mark of a store with a report of lakeFS's. `report_url`: the folder of its summary.json.
    `namespace`: the URL of the repository's namespace; '': where the report lies in it. `state`: as of the run.

    Raises Invalid, NotFound, Corrupt, and Unavailable.
    """
    namespace = namespace or _namespace_of(report_url)
    mark, ours = _read_ours(store_url, state, namespace)
    summary, addresses = read_report_of_lakefs(report_url)
    theirs = pc.unique(NameResolver(store_url, namespace).resolve(addresses).keys)
    only_ours = ours.filter(pc.invert(pc.is_in(ours, value_set=theirs)))
    only_theirs = theirs.filter(pc.invert(pc.is_in(theirs, value_set=ours)))
    return ReportComparison(
        namespace=namespace,
        our_run=mark.manifest.run_id,
        their_run=summary.run_id,
        both=len(ours) - len(only_ours),
        only_ours=len(only_ours),
        only_theirs=len(only_theirs),
        examples_only_ours=only_ours.slice(0, EXAMPLES_MAX).to_pylist(),
        examples_only_theirs=only_theirs.slice(0, EXAMPLES_MAX).to_pylist(),
    )


def write_as_lakefs(
    store_url: str,
    target_url: str,
    *,
    namespace: str,
    state: str | None = None,
    min_age: timedelta = timedelta(days=1),
) -> CollectorSummary:
    """Write the last mark of a store as lakefs-sgc writes its report. `namespace`: its URL. `min_age`: of the run."""
    mark, keys = _read_ours(store_url, state, namespace)
    prefix = _prefix_of(store_url, namespace)

    addresses = pc.binary_replace_slice(keys, start=0, stop=len(prefix.encode()), replacement="")
    rows = BytesIO()
    rows.write(b"address\n")
    in_quotes = _csv.WriteOptions(include_header=False, quoting_style="all_valid")
    _csv.write_csv(pa.table({"address": addresses}), rows, in_quotes)
    began_ms = mark.manifest.marked_ms
    summary = CollectorSummary(
        run_id=mark.manifest.run_id,
        success=True,
        start_time=format_utc(began_ms),
        cutoff_time=format_utc(began_ms - min_age // timedelta(milliseconds=1)),
        num_deleted_objects=len(keys),
    )
    make_objects(target_url)
    with closing(open_objects(target_url)) as target:
        target.put(_CSV, rows.getvalue())
        target.put(_SUMMARY, msgspec.json.encode(summary))
    return summary


def read_report_of_lakefs(report_url: str) -> tuple[CollectorSummary, Any]:
    """Return the summary of a report, and its addresses. Raises Invalid, NotFound, Corrupt."""
    with closing(open_objects(report_url, read_only=True)) as store:
        try:
            summary = msgspec.json.decode(store.read(_SUMMARY), type=CollectorSummary)
        except ObjectNotFound:
            raise NotFound(
                f"{report_url} has no {_SUMMARY}; give the folder of a report of lakeFS's collector"
            ) from None
        except msgspec.DecodeError as error:
            raise Corrupt(f"{_SUMMARY} in {report_url} is no summary of lakeFS's collector ({error})") from error
        if not summary.success:
            raise Invalid(f"the run {summary.run_id} of lakeFS's collector failed; compare with one that succeeded")
        addresses = _read_addresses(store)
    if len(addresses) != summary.num_deleted_objects:
        raise Corrupt(
            f"{report_url} has {len(addresses)} addresses, and its summary says {summary.num_deleted_objects}; copy it "
            "again"
        )
    return summary, addresses


def _read_addresses(store: ObjectStore) -> Any:
    keys = [info.key for info in store.list(_PARQUET) if info.key.endswith(".parquet")]
    try:
        if store.head_many([_CSV])[0] is not None:
            as_text = _csv.ConvertOptions(column_types={"address": pa.string()})
            in_quotes = _csv.ParseOptions(newlines_in_values=True)
            return _csv.read_csv(BytesIO(store.read(_CSV)), parse_options=in_quotes, convert_options=as_text)["address"]
        tables = [pq.ParquetFile(BytesIO(store.read(key))).read(columns=["address"]) for key in keys]
        return pa.concat_tables(tables)["address"].cast(pa.string()) if tables else make_array([], pa.string())
    except (pa.ArrowException, KeyError, OSError) as error:
        raise Corrupt(
            f"{store.url} has no list of addresses in {_CSV} or {_PARQUET} ({error}); copy it again"
        ) from error


def _read_ours(store_url: str, state: str | None, namespace: str) -> tuple[LastMark, Any]:
    """Return the last mark, and its keys in the namespace."""
    prefix = _prefix_of(store_url, namespace)
    with closing(open_objects(state or store_url, read_only=True)) as files:
        mark = last_mark(files, store_url)
        if mark is None:
            raise NotFound(f"no mark of {store_url} stands; run `refstore prune run`, which deletes nothing at first")
        keys = [read_unit(files, unit)["key"].combine_chunks() for unit in mark.manifest.units]
    ours = pa.concat_arrays(keys) if keys else make_array([], pa.string())
    return mark, ours.filter(pc.starts_with(ours, prefix))


def _prefix_of(store_url: str, namespace: str) -> str:
    """Return the beginning of the namespace's keys. Raises Invalid: it does not lie in the store."""
    keys = NameResolver(store_url, namespace).resolve(make_array(["x"], pa.string())).keys.to_pylist()
    if len(keys) != 1:
        raise Invalid(f"{namespace} does not lie in {store_url}; give the store that was pruned")
    return keys[0].removesuffix("x")


def _namespace_of(report_url: str) -> str:
    before, separator, _ = report_url.partition(f"/{FOLDER}")
    if not separator:
        raise Invalid(f"{report_url} does not lie in a namespace of lakeFS; give the URL of the namespace, too")
    return before
