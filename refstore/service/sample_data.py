"""Sample data for a new repository, in the layout that lakeFS's quickstart and its clients' tutorials expect.

Everything is made up here, from a fixed seed, so nobody's licence applies and every repository gets the same:
`lakes.parquet` with the columns that the tutorials' queries name, a `README.md` that goes through them, and where the
data is from (`data/`). The lakes, their countries and their depths mean nothing. Before
that, some commits of the past write guests' visits to the lakes (`data/visits/`), so that there is a history to try
retention and purges on.
"""

from __future__ import annotations

import io
from random import Random
from typing import Final

from refstore.core.arrow_arrays import make_array
from refstore.core.clock import to_datetime
from refstore.core.ids import CommitId
from refstore.core.units import DAY_MS
from refstore.operations.upload import Upload
from refstore.repository import Repository
from refstore.versioning.commits.columns import pa, pq

MESSAGE: Final = "Add sample data"
HISTORY_DAYS: Final = (120, 90, 60, 30)
"""How many days ago the commits before the last one say they were made."""
VISITS: Final = "data/visits/visits.parquet"
GUESTS: Final = 50
LAKES: Final = 100_000

_PARQUET: Final = "application/vnd.apache.parquet"
_SEED: Final = 20261122
_COUNTRIES: Final = {
    "Canada": 300, "Russia": 220, "United States of America": 150, "Sweden": 60, "Finland": 55, "Norway": 45,
    "China": 30, "Brazil": 25,
    "Kazakhstan": 22, "Argentina": 18, "Greenland": 14, "India": 12, "Chile": 10, "Iceland": 9, "Denmark": 8,
    "Germany": 8, "Poland": 7,
    "Estonia": 5, "Japan": 5, "Kenya": 4, "New Zealand": 4, "Italy": 3, "Switzerland": 3, "Turkey": 3, "Vietnam": 2,
}  # fmt: skip
"""With how often each is drawn."""
_FIRST: Final = [
    "Al", "Bor", "Cal", "Dro", "El", "Fen", "Gar", "Hol", "Ist", "Jor", "Kel", "Lom", "Mar", "Nor", "Ost", "Per",
    "Quel", "Ros", "Sel", "Tarn", "Ul", "Ver", "Wil", "Yar", "Zel", "Brei", "Clo", "Dun", "Esk", "Fro", "Grim",
]  # fmt: skip
_MIDDLE: Final = [
    "a", "e", "i", "o", "u", "ana", "eri", "ilo", "ora", "une", "ame", "ebi", "ido", "olu", "uta", "ava", "este",
    "ini",
]  # fmt: skip
_LAST: Final = [
    "bek", "dal", "fell", "gat", "hem", "jarvi", "koski", "lund", "mere", "nes", "por", "rim", "sund", "ton", "vatn",
    "wick",
]  # fmt: skip
_KINDS: Final = ["Lake {}", "{} Lake", "{} Reservoir", "{} Pond", "{}", "Upper {}", "Lower {}", "Little {}"]

_README: Final = """\
# Sample data

`lakes.parquet` lists {lakes:,} lakes: `Hylak_id`, `Lake_name`, `Country` and `Depth_m`. `data/visits/` has guests'
visits to them, which earlier commits wrote. All of it is made up (see `data/lakes.source.md`), so that there is
something to query, to change, to undo and to delete.
Any client of lakeFS's API reads it, such as DuckDB with `lakefs-spec`:

```python
import duckdb
from lakefs_spec import LakeFSFileSystem

duckdb.register_filesystem(LakeFSFileSystem())
```

## Query

```sql
SELECT   country, COUNT(*)
FROM     READ_PARQUET('lakefs://{repository}/{branch}/lakes.parquet')
GROUP BY country
ORDER BY COUNT(*)
DESC LIMIT 5;
```

## Change it on a branch

```bash
refstore branch create {repository} denmark-lakes --from {branch}
```

```sql
CREATE OR REPLACE TABLE lakes AS
    SELECT * FROM READ_PARQUET('lakefs://{repository}/denmark-lakes/lakes.parquet');
DELETE FROM lakes WHERE Country != 'Denmark';
COPY lakes TO 'lakefs://{repository}/denmark-lakes/lakes.parquet';
```

The same query on `denmark-lakes` now finds Denmark only, and on `{branch}` what it found before.

## Commit, merge, and change your mind

```bash
refstore commit {repository} denmark-lakes -m "Keep the lakes of Denmark"
refstore merge {repository} denmark-lakes --into {branch}
refstore revert {repository} {branch} --on {branch} --parent 1
```
"""

_SOURCE: Final = """\
# Where lakes.parquet is from

From nowhere: refstore made it up when the repository was created. Names, countries and depths were drawn at random,
always the same ones.
They say nothing of any real lake. Nobody's rights are in it; do with it what you like.
"""


def add_sample_data(repo: Repository, *, committer: str = "") -> CommitId:
    """Upload the sample data to the default branch, and commit it after a history of four months."""
    now_ms = repo.context.clock.now_ms()
    for number, days in enumerate(HISTORY_DAYS, start=1):
        repo.upload(repo.default_branch, VISITS, visits_parquet(number), content_type=_PARQUET)
        date = to_datetime(now_ms - days * DAY_MS)
        repo.commit(repo.default_branch, f"Add visits of month {number}", committer=committer, date=date)
    for _ in repo.upload_many(repo.default_branch, sample_uploads(repo.name, repo.default_branch)):
        pass
    return repo.commit(repo.default_branch, MESSAGE, committer=committer).id


def sample_uploads(repository: str, branch: str) -> list[Upload]:
    """Return the sample data of a repository with that name and default branch."""
    readme = _README.format(repository=repository, branch=branch, lakes=LAKES)
    return [
        Upload(path="README.md", body=readme.encode(), content_type="text/markdown"),
        Upload(path="data/lakes.source.md", body=_SOURCE.encode(), content_type="text/markdown"),
        Upload(path="lakes.parquet", body=lakes_parquet(), content_type=_PARQUET),
    ]


def lakes_parquet() -> bytes:
    """Return the Parquet file: the same rows always, the same bytes under the same version of pyarrow."""
    rng = Random(_SEED)  # noqa: S311  # the same numbers each time, no secret
    parts = (rng.choices(words, k=LAKES) for words in (_KINDS, _FIRST, _MIDDLE, _LAST))
    names = [kind.format(first + middle + last) for kind, first, middle, last in zip(*parts, strict=True)]
    countries = rng.choices(list(_COUNTRIES), list(_COUNTRIES.values()), k=LAKES)
    depths = [round(rng.lognormvariate(2.2, 0.9), 1) for _ in range(LAKES)]
    table = pa.table(
        {
            "Hylak_id": make_array(range(1, LAKES + 1), pa.int64()),
            "Lake_name": make_array(names, pa.string()),
            "Country": make_array(countries, pa.string()),
            "Depth_m": make_array(depths, pa.float64()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def visits_parquet(months: int) -> bytes:
    """Return the visits of so many months, each guest's to one lake a month, as a Parquet file."""
    rows = [(month, guest) for month in range(1, months + 1) for guest in range(1, GUESTS + 1)]
    rng = Random(_SEED)  # noqa: S311  # the same numbers each time, no secret
    table = pa.table(
        {
            "month": make_array([month for month, _ in rows], pa.int64()),
            "guest": make_array([f"guest-{guest}" for _, guest in rows], pa.string()),
            "Hylak_id": make_array([rng.randint(1, LAKES) for _ in rows], pa.int64()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
