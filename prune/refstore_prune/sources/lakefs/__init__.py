"""Names of a lakeFS repository: what is uncommitted, and what the commits name that its retention rules keep.

credentials.py        whose access key is used, read as lakectl reads it
client.py             the calls of lakeFS's HTTP API
source.py             the source itself: in which order it reads what
namespace_place.py    where the repository's namespace lies in the store
kept_commits.py       which commits keep what they name
name_tasks.py         the tasks that read names
committed.py          what is committed: a metarange names ranges, a range names objects
sstable.py            the tables in which lakeFS keeps both
"""
