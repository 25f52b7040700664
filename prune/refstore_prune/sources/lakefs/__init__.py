"""Names of a lakeFS repository: what is uncommitted, and what the commits name that its retention rules keep.

credentials.py        whose access key is used, read as lakectl reads it
client.py             the calls of lakeFS's HTTP API
source.py             the source itself: in which order it reads what
committed.py          metaranges and ranges: which ranges there are, and the addresses of each
sstable.py            the format of both
compare_reports.py    a report beside lakeFS's own, and what they disagree on
"""

from __future__ import annotations
