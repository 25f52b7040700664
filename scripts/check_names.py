"""Refuse names that a reader could not guess, or would confuse: one name for one thing. And refuse docstrings that name
what is not there.

.venv/bin/python scripts/check_names.py
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT: Final = ("refstore", "api", "reaper", "offline_gc", "purge", "prune", "s3_gateway")
LINES_MAX: Final = 60
"""Of a function, with its docstring."""
SAME_NAMES_MAY_STAND_IN: Final = frozenset({"cli", "routes", "ui", "kv", "objects", "engines", "redis", "s3"})
"""Folders of commands, routes, pages and drivers: their modules are named by what they stand for."""
NO_SUBJECT: Final = frozenset({"__init__", "__main__", "base"})
NO_GERUND: Final = frozenset({"encoding", "meaning", "ring", "spring", "staging", "string", "swing", "thing"})
IRREGULAR: Final = re.compile(
    "about|above|after|at|before|begun|behind|below|beside|between|brought|built|by|chosen|done|drawn|for|"
    "found|from|given|going|gone|had|held|hidden|in|into|kept|known|left|like|lost|made|met|near|of|off|on|out|"
    "over|ran|seeing|seen|sent|shown|since|standing|taken|there|through|to|told|under|unknown|until|via|"
    "waiting|when|where|with|without|written"
)
"""Participles and prepositions that are no name by themselves, beside the participles that end in `-ed`."""
NO_PARTICIPLE: Final = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "shed"})
FIELD_WORDS: Final = "scripts/field_words.txt"
"""Of these words, one a line, names of JSON fields, settings and metrics are made."""


FILE_ENDINGS: Final = (".py", ".md", ".toml", ".json", ".jsonl", ".txt", ".parquet", ".lua", ".yml", ".orc", ".avro")
ERRORS_RAISED: Final = re.compile(r"\bRaises (_?[A-Z]\w+(?:,? (?:and |or )?_?[A-Z]\w+)*)")


class Docstring(NamedTuple):
    """A docstring of a module, a class, a function or a value."""

    text: str
    place: str
    is_of_module: bool


class Code(NamedTuple):
    """What the code has without its docstrings."""

    words: dict[str, set[str]]
    """By module."""
    words_of_texts: set[str]
    """Words of string literals: keys, fields, commands, headers."""
    members: dict[str, set[str]]
    """By class, those of its bases included where they are the product's."""


class Names(NamedTuple):
    """What a tree of modules names, each with the place where it stands."""

    classes: list[tuple[str, str]]
    functions: list[tuple[str, str, int]]
    """With its number of lines."""
    modules: list[str]
    words: dict[str, str]
    """Words of JSON fields, settings and metrics, and one place of each."""
    docstrings: list[Docstring]
    code: Code


def read_names(root: Path, folders: Sequence[str]) -> Names:
    """Read what all modules below these folders name."""
    names = Names([], [], [], {}, [], Code({}, set(dir(builtins)), {}))
    bases: dict[str, list[str]] = {}
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            place = str(file.relative_to(root))
            names.modules.append(place)
            tree = ast.parse(file.read_text("utf-8"))
            _read_words(tree, place, names)
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    names.classes.append((node.name, place))
                    names.code.members[node.name] = set(_words(node))
                    bases[node.name] = [ast.unparse(base).partition("[")[0] for base in node.bases]
                    if _is_document(node, place):
                        _add_words(names, _fields(node), place)
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    names.functions.append((node.name, place, lines))
                elif isinstance(node, ast.Dict | ast.Call) and _names_fields(node, place):
                    _add_words(names, _strings(node), place)
    for name, members in names.code.members.items():
        for base in (above := [name]):
            above.extend(each for each in bases[base] if each in bases and each not in above)
            members.update(names.code.members[base])
    return names


def _read_words(tree: ast.Module, place: str, names: Names) -> None:
    """Read the docstrings of a module, and the words of everything else."""
    texts = [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
    ]
    of_module = ast.get_docstring(tree, clean=False)
    names.docstrings.extend(
        Docstring(str(text.value), place, text.value is of_module or text.value == of_module) for text in texts
    )
    names.code.words[place] = set(_words(tree))
    docstrings = {id(text) for text in texts}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            names.code.words_of_texts.update(re.findall(r"\w+", node.value))


def _words(tree: ast.AST) -> Iterator[str]:
    """Yield every name of the code: of classes, functions, arguments, attributes, values and imports."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            if isinstance(word := getattr(node, field, None), str):
                yield from word.split(".")


def faults(names: Names, field_words: Set[str], exceptions: dict[str, str]) -> Iterator[str]:
    """Yield a line for each name that breaks a rule, but for the exceptions, and for each exception that excuses none.

    `exceptions`: a reason by the fault's subject: a class, a module's path, `path: function`, or a word.
    """
    excused: set[str] = set()
    for subject, fault in _all_faults(names, field_words):
        if subject in exceptions:
            excused.add(subject)
        else:
            yield fault
    for subject in sorted(exceptions.keys() - excused):
        yield f"{subject}: is an exception, and breaks no rule; take it off the list"


def _all_faults(names: Names, field_words: Set[str]) -> Iterator[tuple[str, str]]:
    for name, places in _repeated((name.lstrip("_"), place) for name, place in names.classes):
        yield name, f"{', '.join(places)}: classes share the name {name}; say in each name which one it is"
    modules = [(Path(place).stem, place) for place in names.modules if not _may_be_repeated(place)]
    for name, places in _repeated(modules):
        yield name, f"{', '.join(places)}: modules share the name {name}"
    for place in names.modules:
        word = Path(place).stem.strip("_").split("_")[-1]
        if Path(place).stem not in NO_SUBJECT and (_is_gerund(word) or _is_participle(word)):
            yield place, f"{place}: a module is named by a noun, or by the verb of its operation"
    existing = {Path(place).name for place in names.modules}
    for docstring in names.docstrings:
        if docstring.is_of_module:
            for name in re.findall(r"(?<![\w/.])\w+\.py\b", docstring.text):
                if name not in existing:
                    place = docstring.place
                    yield f"{place}: {name}", f"{place}: its docstring names {name}, and there is no such module"
    yield from _names_of_nothing(names.docstrings, names.code)
    for name, place, lines in names.functions:
        if lines > LINES_MAX:
            yield f"{place}: {name}", f"{place}: {name} has {lines} lines; split it by subject, or say why not"
    single_words = [(name, place) for name, place in names.classes if re.fullmatch("_?[A-Z][a-z]+", name)]
    for name, place in [*single_words, *((name, place) for name, place, _ in names.functions)]:
        if _is_participle(name.strip("_").lower()):
            yield f"{place}: {name}", f"{place}: {name} does not say which thing it is, or what it does"
    for word, place in sorted(names.words.items()):
        if word not in field_words:
            yield word, f"{place}: {word!r} is no word of {FIELD_WORDS}; use one of its words, or add it there"
    for word in sorted(field_words - names.words.keys()):
        yield word, f"{FIELD_WORDS}: no field, setting or metric has the word {word!r}; take it off the list"


def _names_of_nothing(docstrings: list[Docstring], code: Code) -> Iterator[tuple[str, str]]:
    """Yield the names in docstrings that the code does not have: `Class`, `_name`, `a.b`, and errors raised."""
    everywhere = code.words_of_texts.union(sys.stdlib_module_names, *code.words.values())
    everywhere.update(part.removesuffix(".py") for place in code.words for part in Path(place).parts)
    for text, place, _ in docstrings:
        here = code.words[place] | code.words_of_texts
        for name in re.findall(r"_?[A-Z]\w+", " ".join(ERRORS_RAISED.findall(text))):
            if name not in everywhere:
                yield name, f"{place}: a docstring says that {name} is raised, and the code has no such name"
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
            if not re.fullmatch(r"[\w.()\[\]<>=|&+, ]+", span):
                continue  # a command, a key, a URL, a header
            for name in re.findall(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)*", span):
                first, *rest = name.split(".")
                if name != span.removesuffix("()") and not first.lstrip("_")[:1].isupper():
                    continue  # a word of a command, or an argument
                if first in code.members and rest:
                    exists = rest[0] in code.members[first]
                elif first in sys.stdlib_module_names or first.startswith("REFSTORE_") or name.endswith(FILE_ENDINGS):
                    exists = True
                elif first.startswith("_") or (name != span.removesuffix("()") and first in code.members):
                    exists = first in here  # the class of an expression may be another one of that name
                else:
                    exists = everywhere.issuperset([first, *rest])
                if not exists:
                    yield name, f"{place}: a docstring names `{span}`, and the code has no such name"


def _repeated(named: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, place in named:
        places[name].append(place)
    return ((name, found) for name, found in sorted(places.items()) if len(found) > 1)


def _may_be_repeated(place: str) -> bool:
    path = Path(place)
    return path.stem in NO_SUBJECT or not SAME_NAMES_MAY_STAND_IN.isdisjoint(path.parts[:-1])


def _is_gerund(word: str) -> bool:
    return word.endswith("ing") and word not in NO_GERUND


def _is_participle(word: str) -> bool:
    if word in NO_PARTICIPLE:
        return False
    return bool(IRREGULAR.fullmatch(word) or re.fullmatch("[a-z]+ed", word))


def _is_document(node: ast.ClassDef, place: str) -> bool:
    """Return whether the class's fields are a program's: of JSON, or of settings."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    return place.endswith("/models.py") or not bases.isdisjoint({"BaseModel", "BaseSettings"})


def _names_fields(node: ast.Dict | ast.Call, place: str) -> bool:
    """Return whether it is a row that a command prints, or declares a metric."""
    return "/cli/" in place if isinstance(node, ast.Dict) else ast.unparse(node.func).rpartition(".")[2] == "Metric"


def _fields(node: ast.ClassDef) -> list[str]:
    targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _strings(node: ast.Dict | ast.Call) -> list[str]:
    """Return the keys of a row, or the name of a metric."""
    values = node.keys if isinstance(node, ast.Dict) else node.args[:1]
    return [key.value for key in values if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def _add_words(names: Names, fields: list[str], place: str) -> None:
    for field in fields:
        if re.fullmatch(r"[a-z][a-z0-9_]*", field):
            for word in field.split("_"):
                names.words.setdefault(word, place)


def read_exceptions(text: str) -> dict[str, str]:
    """Read lines of `SUBJECT # REASON`. Raises ValueError for a line without a reason."""
    exceptions: dict[str, str] = {}
    for line in text.splitlines():
        subject, mark, reason = line.partition(" # ")
        if line.strip() and not line.startswith("#"):
            if not mark or not reason.strip():
                raise ValueError(f"an exception without a reason: {line}")
            exceptions[subject.strip()] = reason.strip()
    return exceptions


def main() -> int:
    """Print the faults; return 1 if there is one."""
    names = read_names(ROOT, PRODUCT)
    field_words = set((ROOT / FIELD_WORDS).read_text("utf-8").split())
    exceptions = read_exceptions((ROOT / "scripts" / "name_exceptions.txt").read_text("utf-8"))
    found = list(faults(names, field_words, exceptions))
    print("\n".join(found) or f"{len(names.classes)} classes and {len(names.functions)} functions are named well")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
