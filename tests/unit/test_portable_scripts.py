"""The scripts use nothing that a macOS lacks: bash 3.2, make 3.81 and BSD's tools, no `sha256sum`, no `/proc`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [ROOT / "Makefile", ROOT / ".ci" / "run", *sorted((ROOT / "scripts").glob("*.sh"))]

FORBIDDEN = {
    # of bash 4 and later
    r"\b(?:declare|local|typeset|export) +-[a-zA-Z]*[Anglu]": "bash 3.2 has no associative arrays, references or cases",
    r"\b(?:mapfile|readarray|coproc)\b": "bash 3.2 has no such command",
    r"\$\{!?\w+(?:\[[^]]*\])?(?:,,?|\^\^?)": "bash 3.2 does not change cases",
    r"\$\{\w+@\w\}": "bash 3.2 has no transformations",
    r"\|&|&>>": "bash 3.2 has no such redirection",
    r"\bwait -n\b": "bash 3.2 waits for all",
    r"\[\[ (?:! )?-v ": "bash 3.2 does not ask whether a variable is set",
    r"\bBASHPID\b|\bEPOCH(?:SECONDS|REALTIME)\b": "bash 3.2 has no such variable",
    r"printf [\"']?%\(": "bash 3.2 prints no times",
    r"(?<!\+)\"\$\{\w+\[@\]\}\"": 'bash 3.2 with `set -u` ends at an empty array; write ${a[@]+"${a[@]}"}',
    # of make 4
    r"--output-sync|^\.ONESHELL|\$\(file |^\w+ *!=": "make 3.81 has no such thing",
    # of GNU's tools, or of Linux
    r"(?<![-\w])(?:sha\d+sum|md5sum|tac|nproc|setsid|realpath|timeout|numfmt|shuf)\b": "macOS has no such program",
    r"/proc/": "macOS has no /proc",
    r"\breadlink -[a-z]*[fem]": "BSD's readlink follows one link",
    r"\bsed (?:-\w+ )*(?:-i|--in-place|-r|-z|--)": "BSD's sed -i wants a suffix, and has no -r, -z or long options",
    r"\bgrep (?:-\w+ )*-\w*[Pz]": "BSD's grep has no -P",
    r"\b(?:date|touch) (?:-d|--date)": "BSD's date reads no dates",
    r"\bstat (?:-c|--)": "BSD's stat has another -f",
    r"\bfind .*-(?:printf|readable|executable)\b": "BSD's find has no such test",
    r"\b(?:xargs|sort|head|tail|ls|du|cut|wc|tr|uniq|cp|mv|rm|mkdir|ln|mktemp|chmod|basename|dirname) (?:-\w+ )*--\w": (
        "BSD's tools have no long options"
    ),
    r"\bxargs (?:-\w+ )*-\w*[rd]": "BSD's xargs has no -r or -d",
    r"\b(?:sort -\w*V|head -n ?-|ls -\w*v|cp -\w*[ut]|ln -\w*[rT]|du -\w*b)": "GNU's tool only",
}
"""What may not stand in a script, and why."""


def offences(text: str) -> list[str]:
    """Comments are left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [
        f"{line.strip()}: {reason}"
        for line in lines
        for pattern, reason in FORBIDDEN.items()
        if re.search(pattern, line)
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_uses_nothing_that_macos_lacks(script: Path) -> None:
    assert offences(script.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "declare -A programs=([a]=b)",
        "local -n name=$1",
        "mapfile -t lines <file",
        'echo "${name,,}"',
        'echo "${name^}"',
        'echo "${names[@]}"',
        'for each in "${names[@]}"; do',
        "make |& tee log",
        "make &>>log",
        "if [[ -v name ]]; then",
        "wait -n",
        "$(file >list,$(NAMES))",
        "NAMES != ls",
        "\twanted=$(sha256sum <file)",
        "readlink -f .",
        "sed -i 's/a/b/' file",
        "sed -E -i 's/a/b/' file",
        "grep -oP 'x' file",
        "date -d yesterday",
        "stat -c %s file",
        "find . -printf '%p'",
        "sort --version-sort",
        "ls | xargs -r rm",
        "head -n -1 file",
        "cat /proc/cpuinfo",
        "timeout 10 make",
    ],
)
def test_what_macos_lacks_is_found(line: str) -> None:
    assert offences(line) != []


@pytest.mark.parametrize(
    "line", ["$(<file)", '${a[@]+"${a[@]}"}', "sed -E 's/a/b/'", "# sha256sum", "trap 'rm -f x' EXIT", 'x="${1:-}"']
)
def test_what_macos_has_is_not(line: str) -> None:
    assert offences(line) == []
