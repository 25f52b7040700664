"""Check the links of every Markdown file of this checkout: the file must exist, and its heading, too. Asks no network.

Prints each broken link, and ends with 1 if there is one. Takes the checkout's folder as an argument; default: this one.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

BUILT = {"build", "dist", "node_modules"}
"""Folders of which git tracks nothing."""
PARSER = MarkdownIt("commonmark").enable("table")


def inlines(file: Path) -> Iterator[tuple[Token, bool]]:
    """Yield each piece of running text of a document, and whether it is a heading."""
    is_heading = False
    for token in PARSER.parse(file.read_text("utf-8")):
        if token.type == "inline":
            yield token, is_heading
        is_heading = token.type == "heading_open"


def links(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the target of each link and image."""
    for token, _ in inlines(file):
        for child in token.children or ():
            target = child.attrs.get("href" if child.type == "link_open" else "src")
            if target is not None:
                yield (token.map or [0])[0] + 1, str(target)


def anchors(file: Path) -> set[str]:
    """Return the anchors that GitHub and GitLab give to a document's headings."""
    names: set[str] = set()
    for token, is_heading in inlines(file):
        if is_heading:
            text = "".join(child.content for child in token.children or ())
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = sum(1 for known in names if re.fullmatch(rf"{re.escape(name)}(-\d+)?", known))
            names.add(f"{name}-{count}" if name in names else name)
    return names


def why_broken(file: Path, target: str, root: Path) -> str:
    """Return what is wrong with a link; '' if nothing is, or if it leads to another host."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    goal = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if not goal.is_relative_to(root) or not goal.exists():
        return "there is no such file"
    if parts.fragment and (goal.suffix != ".md" or parts.fragment not in anchors(goal)):
        return "there is no such heading"
    return ""


def documents(root: Path) -> list[Path]:
    """Return the Markdown files below a folder. Hidden folders, and what is built, are left out."""
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in BUILT]
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(found)


def main(root: Path) -> int:
    broken = [
        f"{file.relative_to(root)}:{line}: {target}: {why}"
        for file in documents(root)
        for line, target in links(file)
        if (why := why_broken(file, target, root))
    ]
    print(*broken, sep="\n", end="\n" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()))
