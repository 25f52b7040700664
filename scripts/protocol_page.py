"""Write the rules of docs/protocol.md from the docstrings of docs/protocol_model, which are their source.

    .venv/bin/python scripts/protocol_page.py           write them into the page
    .venv/bin/python scripts/protocol_page.py --check   return 1 if the page has others

In the page a line `<!--staging.Staging.enter-->` names a module and a class or function of it. What follows, to the
next such line or heading `##`, is its docstring from the line on that begins a rule: `Rule 2: TITLE.`, which becomes a
heading, or `Rule 9, SUBJECT: text`, which becomes a paragraph. (`Protocol: TITLE.` begins what is
no rule.) A docstring with a rule that the page does not name is an error.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PLACE: Final = re.compile(r"^<!--(?P<name>[\w.]+)-->\n.*?(?=^<!--|^## |\Z)", re.MULTILINE | re.DOTALL)
RULE: Final = re.compile(r"^(?:Rule \d+[:,]|Protocol:) ", re.MULTILINE)
TITLE: Final = re.compile(r"^(?:Rule (\d+)|Protocol): (.+)\.$", re.MULTILINE)
SUBJECT: Final = re.compile(r"^Rule \d+, ([^:]+): ", re.MULTILINE)


def read_rules(folder: Path) -> dict[str, str]:
    """Return what the docstrings of a model say of rules, as Markdown, by the names of their modules, classes and
    functions.
    """
    return {
        name: SUBJECT.sub(r"**\1.** ", TITLE.sub(_heading, docstring[start.start() :])) + "\n"
        for module in sorted(folder.glob("*.py"))
        for name, docstring in _docstrings(ast.parse(module.read_text("utf-8")), module.stem)
        if (start := RULE.search(docstring))
    }


def _heading(title: re.Match[str]) -> str:
    return f"### {title[1]}. {title[2]}" if title[1] else f"### {title[2]}"


def _docstrings(node: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, str]]:
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield f"{name}.{child.name}", ast.get_docstring(child) or ""
        if isinstance(child, ast.ClassDef):
            yield from _docstrings(child, f"{name}.{child.name}")


def write_page(page: str, rules: dict[str, str]) -> str:
    """Return the page with the rules at their places. Raises ValueError for a rule without a place, and for a place
    without a rule.
    """
    named = [place["name"] for place in PLACE.finditer(page)]
    if sorted(named) != sorted(rules):
        wrong = ", ".join(sorted({*named} ^ {*rules}) or sorted({name for name in named if named.count(name) > 1}))
        raise ValueError(f"docs/protocol.md must have one place for each docstring with a rule; see {wrong}")
    return PLACE.sub(lambda place: f"<!--{place['name']}-->\n\n{rules[place['name']]}\n", page).rstrip("\n") + "\n"


def main(root: Path = ROOT) -> int:
    """Write the page, or compare it."""
    file = root / "docs" / "protocol.md"
    page = file.read_text("utf-8")
    try:
        written = write_page(page, read_rules(root / "docs" / "protocol_model"))
    except ValueError as error:
        print(f"protocol_page: {error}", file=sys.stderr)
        return 1
    if "--check" not in sys.argv[1:]:
        file.write_text(written, "utf-8")
    elif written != page:
        print("protocol_page: the rules of docs/protocol.md are not those of the model; run: scripts/protocol_page.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
