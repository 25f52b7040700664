"""Read a git repository by git's plumbing commands. Bare repositories and shallow clones work, too.

The oldest commits of a shallow clone have no parents here, as in `git rev-list`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from refstore.errors import Invalid

NO_FILE: Final = frozenset({"000000", "160000"})
"""Modes of entries without bytes in this repository: none, and a submodule."""
DETACHED: Final = "HEAD"
MESSAGE_CHARACTERS: Final = 200


class GitCommit(NamedTuple):
    id: str
    date: datetime
    """The committer's date, when the commit got its present parent. The author's date may be years earlier."""
    parents: tuple[str, ...]
    subject: str


class Git:
    def __init__(self, folder: Path) -> None:
        """Raises Invalid: git is not installed, or does not know the folder."""
        self._folder = folder
        self.run("rev-parse", "--git-dir")

    def run(self, *arguments: str, stdin: str = "") -> bytes:
        try:
            done = subprocess.run(
                ["git", "-C", str(self._folder), *arguments], input=stdin.encode(), capture_output=True, check=False
            )
        except FileNotFoundError as error:
            raise Invalid("git is not installed; install it, then run this again") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise Invalid(
                f"git {arguments[0]} in {self._folder} said: {said}; give the folder of a git repository that git can "
                "read"
            )
        return done.stdout

    def lines(self, *arguments: str, stdin: str = "") -> list[str]:
        return self.run(*arguments, stdin=stdin).decode(errors="replace").splitlines()

    # ---- names

    def default_branch(self) -> str:
        """The branch of HEAD; '' if HEAD is detached."""
        try:
            return self.lines("symbolic-ref", "--quiet", "--short", "HEAD")[0]
        except (Invalid, IndexError):
            return ""

    def heads(self) -> dict[str, str]:
        """Return the branches, and HEAD itself if it is detached."""
        found = self._names("refs/heads/")
        if not self.default_branch():
            found[DETACHED] = self.lines("rev-parse", "--verify", "HEAD")[0]
        return found

    def tags(self) -> dict[str, str]:
        """Return the tags that name commits."""
        return self._names("refs/tags/")

    def _names(self, folder: str) -> dict[str, str]:
        refs = self.lines("for-each-ref", "--format=%(refname)", folder)
        asked = "".join(f"{ref}^{{commit}}\n" for ref in refs)
        answers = self.lines("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked) if refs else []
        return {
            ref.removeprefix(folder): answer.split()[0]
            for ref, answer in zip(refs, answers, strict=True)
            if answer.endswith(" commit")
        }

    # ---- history

    def commits(self, *, dangling: bool) -> list[GitCommit]:
        """Return the commits, every child before its parents. `dangling`: also commits that no branch or tag reaches,
        as long as git has them.
        """
        if dangling:
            every = self.lines(
                "cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname) %(objecttype)"
            )
            wanted = [line.split()[0] for line in every if line.endswith(" commit")]
        else:
            wanted = [*self.heads().values(), *self.tags().values()]
        if not wanted:
            return []
        told = self.lines(
            "rev-list", "--date-order", "--format=%H %ct %P%x00%s", "--stdin", stdin="\n".join(wanted) + "\n"
        )
        found: list[GitCommit] = []
        for line in told:
            said, separator, subject = line.partition("\0")
            if separator:  # the others only say which commit comes
                commit, seconds, *parents = said.split()
                date = datetime.fromtimestamp(int(seconds), UTC)
                found.append(GitCommit(commit, date, tuple(parents), subject[:MESSAGE_CHARACTERS]))
        return found

    def first_parents(self, commit: str) -> list[str]:
        """Return a commit, its first parent, and so on."""
        return self.lines("rev-list", "--first-parent", commit)

    # ---- files

    def tree(self, commit: str) -> dict[str, str]:
        """Return path -> blob for every file."""
        found: dict[str, str] = {}
        for entry in self.run("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
            said, _, path = entry.partition(b"\t")
            mode, _, blob = said.decode().split()
            if mode not in NO_FILE:
                found[_text(path)] = blob
        return found

    def changes(self, parent: str | None, commit: str) -> dict[str, str | None]:
        """Return path -> blob, None if it is deleted. `parent` None: everything is new."""
        if parent is None:
            return dict(self.tree(commit))
        parts = self.run("diff-tree", "-r", "-z", "--no-renames", "--no-commit-id", parent, commit).split(b"\0")[:-1]
        found: dict[str, str | None] = {}
        for said, path in zip(parts[::2], parts[1::2], strict=True):
            before, after, blob_before, blob, _ = said.decode().removeprefix(":").split()
            if after not in NO_FILE:
                if before in NO_FILE or blob != blob_before:  # otherwise only its mode has changed
                    found[_text(path)] = blob
            elif before not in NO_FILE:
                found[_text(path)] = None
        return found

    @contextmanager
    def blobs(self) -> Generator[Blobs, None, None]:
        process = subprocess.Popen(
            ["git", "-C", str(self._folder), "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=-1,
        )
        try:
            yield Blobs(process)
        finally:
            process.communicate()


class Blobs:
    """Reads blobs through one open `git cat-file --batch`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def read(self, blob: str) -> bytes:
        """Return the bytes of a blob. Raises Invalid if git does not have it (a partial clone)."""
        asking, telling = self._process.stdin, self._process.stdout
        assert asking is not None  # noqa: S101  # pipes were asked for
        assert telling is not None  # noqa: S101  # both were
        asking.write(f"{blob}\n".encode())
        asking.flush()
        head = telling.readline().split()
        if len(head) != 3:
            raise Invalid(f"git does not have blob {blob}; fetch it, or use a clone that is not partial")
        body = telling.read(int(head[2]))
        telling.read(1)
        return body


def _text(path: bytes) -> str:
    """Decode a path: git's paths are bytes, refstore's are text."""
    return path.decode("utf-8", errors="backslashreplace")
