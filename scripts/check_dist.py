"""Check the distributions of a release: check_dist.py FOLDER VERSION.

Checks what the sdist and the wheel hold and say of themselves. Then builds a wheel from the sdist alone, installs it
into an environment of its own, without a registry, and runs `refstore --version` there. Ends with 1 at the first fault.
"""

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

from refstore.core.event_log import ROOTS as PACKAGES
from refstore.distribution import DISTRIBUTION

FILES = DISTRIBUTION.replace("-", "_")
IN_SDIST = {
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "api",
    "offline_gc",
    "prune",
    "purge",
    "pyproject.toml",
    "reaper",
    "refstore",
    "s3_gateway",
}


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"check_dist: {what}")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def check_metadata(text: str, version: str) -> None:
    fields = Parser().parsestr(text)
    expect(fields["Name"] == DISTRIBUTION, f"the name is {fields['Name']!r}")
    expect(fields["Version"] == version, f"the version is {fields['Version']!r}, not {version!r}")
    expect(bool(fields["Requires-Python"]), "there is no Requires-Python")
    expect(fields["License-Expression"] == "Apache-2.0", "there is no License-Expression")
    expect("Typing :: Typed" in fields.get_all("Classifier", []), "the classifier 'Typing :: Typed' is missing")
    expect("# refstore" in str(fields.get_payload()), "the description is not README.md")


def check_wheel(wheel: Path, version: str) -> None:
    info = f"{FILES}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        top = {name.split("/")[0] for name in names}
        expect(top == {*PACKAGES, info}, f"{wheel.name} holds {sorted(top)}")
        missing = {f"{package}/py.typed" for package in PACKAGES} - set(names)
        expect(not missing, f"{wheel.name} lacks {sorted(missing)}")
        check_metadata(archive.read(f"{info}/METADATA").decode(), version)


def check_sdist(sdist: Path, version: str, scratch: Path) -> Path:
    """Return a wheel that was built from the sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    source = scratch / f"{FILES}-{version}"
    top = {entry.name for entry in source.iterdir()}
    expect(top == IN_SDIST, f"{sdist.name} holds {sorted(top)}")
    check_metadata((source / "PKG-INFO").read_text("utf-8"), version)
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", scratch / "again", cwd=source)
    return scratch / "again" / f"{FILES}-{version}-py3-none-any.whl"


def check_installs(wheel: Path, version: str, scratch: Path) -> None:
    """Install the wheel alone. Its dependencies are this environment's, found by their folder, not by the project's."""
    environment = scratch / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=scratch)
    uv = Path(sys.executable).with_name("uv")
    install = ("pip", "install", "--offline", "--no-deps", "--no-config", "--quiet", "--python")
    run(uv, *install, environment / "bin" / "python", wheel, cwd=scratch)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    said = run(environment / "bin" / "refstore", "--version", cwd=scratch).strip()
    expect(said == f"refstore {version}", f"the installed command says {said!r}")


def main(folder: Path, version: str) -> None:
    wheel, sdist = folder / f"{FILES}-{version}-py3-none-any.whl", folder / f"{FILES}-{version}.tar.gz"
    there = {entry.name for entry in folder.iterdir()}
    expect(there == {wheel.name, sdist.name}, f"{folder} holds {sorted(there)}")
    check_wheel(wheel, version)
    with tempfile.TemporaryDirectory() as scratch:
        again = check_sdist(sdist, version, Path(scratch))
        check_wheel(again, version)
        check_installs(wheel, version, Path(scratch))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
