"""Git repositories that tests make: commits with dates of their own, and nothing of the machine's own git
configuration.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.git import need_git

DAY_SECONDS = 86_400


class Made:
    """A git repository in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        need_git()
        self.folder = folder
        folder.mkdir(parents=True)
        self.now = int(time.time())
        self.named: dict[str, str] = {}
        """Commits, by what the test calls them."""
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, days_ago: float = 0, check: bool = True) -> str:
        when = f"{self.now - int(days_ago * DAY_SECONDS)} +0100"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        own = {
            "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_DATE": when,
            "GIT_COMMITTER_DATE": when,
            "GIT_AUTHOR_NAME": "ann", "GIT_AUTHOR_EMAIL": "ann@example", "GIT_COMMITTER_NAME": "ann",
            "GIT_COMMITTER_EMAIL": "ann@example",
        }  # fmt: skip
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=kept | own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def write(self, files: dict[str, str | None]) -> None:
        for path, body in files.items():
            file = self.folder / path
            if body is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(body, "utf-8")
        self.git("add", "--all")

    def commit(self, name: str, days_ago: float, files: dict[str, str | None]) -> str:
        """Change files (None: delete), commit them."""
        self.write(files)
        self.git("commit", "--quiet", "--allow-empty", f"--message={name}", days_ago=days_ago)
        return self.remember(name)

    def merge(
        self, name: str, days_ago: float, other: str, *options: str, files: dict[str, str | None] | None = None
    ) -> str:
        """`files`: what a person made of its conflicts."""
        self.git("merge", "--quiet", "--no-ff", "--no-commit", *options, other, check=False)
        self.write(files or {})
        self.git("commit", "--quiet", f"--message={name}", days_ago=days_ago)
        return self.remember(name)

    def remember(self, name: str, ref: str = "HEAD") -> str:
        self.named[name] = self.git("rev-parse", ref)
        return self.named[name]


def grown(folder: Path) -> Made:
    """Branches, merges with and without conflicts, a deleted branch, a commit that was never on one, and names of all
    kinds.
    """
    made = Made(folder)
    made.commit(
        "first", 60, {"a.txt": "a1", "with space/ü – ñ\n.txt": "odd", "back.txt": "once", "dir/x": "x1", "empty": ""}
    )
    made.git("tag", "v1")
    made.git("branch", "feature")
    made.commit("second", 50, {"a.txt": "a2", "back.txt": None})
    made.git("checkout", "--quiet", "feature")
    made.commit("feature one", 45, {"feature.txt": "f1", "dir/x": "x of the feature"})
    made.commit("feature two", 40, {"feature.txt": "f2"})
    made.git("checkout", "--quiet", "main")
    made.commit("third", 38, {"dir/x": "x of main"})
    made.merge("merge with conflicts", 35, "feature", files={"dir/x": "x of both"})
    made.commit("back again", 30, {"back.txt": "once"})
    made.git("branch", "release/1.0")
    made.git("checkout", "--quiet", "-b", "doomed")
    made.commit("doomed", 20, {"doomed.txt": "d", "a.txt": "a of the doomed"})
    made.git("checkout", "--quiet", "-b", "side", "main")
    made.commit("side", 18, {"side.txt": "s"})
    made.git("checkout", "--quiet", "main")
    made.merge("merge without conflicts", 16, "side")
    made.git("checkout", "--quiet", "-b", "unwanted", "main")
    made.commit("unwanted", 15, {"unwanted.txt": "u", "a.txt": "a of the unwanted"})
    made.git("checkout", "--quiet", "main")
    made.merge("merge that takes nothing", 14, "unwanted", "--strategy=ours")
    made.git("branch", "--quiet", "-D", "doomed")
    tree = made.git("rev-parse", "HEAD^{tree}")
    made.remember(
        "never on a branch", made.git("commit-tree", tree, "-p", "main~1", "-m", "never on a branch", days_ago=3)
    )
    made.commit("recent", 8, {"a.txt": "a3", "dir/x": None})
    (made.folder / "a.txt").chmod(0o755)
    made.commit("only a mode", 5, {})
    made.git("tag", "--annotate", "--message=two", "v2", days_ago=5)
    made.commit("last", 1, {"link": "a.txt", "a.txt": "a4"})
    return made
