"""Write docs/decisions/README.md from the titles, dates and states of the decision pages."""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "decisions"
HEAD = re.compile(
    r"# (?P<number>\d{4}): (?P<title>.+)\n\n- Date: (?P<date>\d{4}-\d\d-\d\d)\n- Status: (?P<status>.+)\n\n"
)
STATUS = re.compile(r"accepted|superseded by \d{4}")
INTRODUCTION = """\
# Decisions

Each page answers one question that somebody will ask of this code: the problem, the decision, what was rejected and
why, and how it is tested. A page stays when a later one replaces it; its status then says `superseded by NNNN`.
Numbers are never reused, and not every number was used.

`python scripts/decision_index.py` writes this index from the pages.

| number | decision | date | status |
|---|---|---|---|
"""


def index(folder: Path = FOLDER) -> str:
    """Return the text of the index. Raises ValueError for a page whose first lines are not as they must be."""
    rows: list[str] = []
    for page in sorted(folder.glob("[0-9]*.md")):
        head = HEAD.match(page.read_text("utf-8"))
        if head is None or head["number"] != page.name[:4] or not STATUS.fullmatch(head["status"]):
            raise ValueError(
                f"{page.name} must begin with '# {page.name[:4]}: TITLE', an empty line, '- Date: YYYY-MM-DD', "
                "'- Status: accepted' (or 'superseded by NNNN'), and an empty line"
            )
        rows.append(f"| [{head['number']}]({page.name}) | {head['title']} | {head['date']} | {head['status']} |\n")
    return INTRODUCTION + "".join(rows)


if __name__ == "__main__":
    try:
        (FOLDER / "README.md").write_text(index(), "utf-8")
    except ValueError as error:
        sys.exit(f"decision_index: {error}")
