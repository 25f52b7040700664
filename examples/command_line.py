"""The parser of an example's command line."""

from __future__ import annotations

import argparse


def make_parser(package: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Return a parser whose texts are shown as they are written, without options yet."""
    return argparse.ArgumentParser(
        prog=f"python -m {package}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
