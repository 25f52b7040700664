"""Write docs/decisions/README.md from the titles of the decision pages, and refuse pages that are too long.

.venv/bin/python scripts/decision_index.py [--check]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "decisions"
HEAD: Final = re.compile(r"# (?P<number>\d{4}): (?P<title>.+)\n\nDate: \d{4}-\d\d-\d\d\n\n")
BOUNDED_FROM: Final = 203
"""The first decision that may have at most `WORDS_MAX` words."""
WORDS_MAX: Final = 250
ALL_WORDS_MAX: Final = 25_000
"""Of all pages and the index. Whoever wants to add one shortens or removes another."""
INTRODUCTION: Final = """\
# Decisions

Each page answers one question that somebody will ask before changing this code: the context, the decision, what follows
from it, and what was rejected and why. It has at most 250 words, and all together have at most 25,000. A page that no
longer holds is removed, and its number is not used again.

`python scripts/decision_index.py` writes this index from the pages.

"""


def index(folder: Path = FOLDER) -> str:
    """Return the text of the index. Raises ValueError for a page whose first lines are not as they must be, and where
    there are too many words.
    """
    rows: list[str] = []
    words = 0
    for page in sorted(folder.glob("[0-9]*.md")):
        text = page.read_text("utf-8")
        head = HEAD.match(text)
        if head is None or head["number"] != page.name[:4]:
            raise ValueError(
                f"{page.name} must begin with '# {page.name[:4]}: TITLE', an empty line, 'Date: YYYY-MM-DD', and an "
                "empty line"
            )
        if int(head["number"]) >= BOUNDED_FROM and len(text.split()) > WORDS_MAX:
            raise ValueError(f"{page.name} has {len(text.split())} words; say it in {WORDS_MAX}")
        words += len(text.split())
        rows.append(f"- [{head['number']}]({page.name}) {head['title']}\n")
    text = INTRODUCTION + "".join(rows)
    words += len(text.split())
    if words > ALL_WORDS_MAX:
        raise ValueError(f"the decisions have {words} words; shorten or remove some, {ALL_WORDS_MAX} are the most")
    return text


def main() -> int:
    """Write the index; with `--check`, return 1 if it is another one."""
    page = FOLDER / "README.md"
    try:
        text = index()
    except ValueError as error:
        print(f"decision_index: {error}", file=sys.stderr)
        return 1
    if "--check" not in sys.argv[1:]:
        page.write_text(text, "utf-8")
    elif page.read_text("utf-8") != text:
        print("decision_index: docs/decisions/README.md is out of date; run: python scripts/decision_index.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
