"""Write the JSON schema of the purge document to docs/purge.schema.json."""

from __future__ import annotations

import json
from pathlib import Path

from refstore.purge_document.document import json_schema

FILE = Path(__file__).parent.parent / "docs" / "purge.schema.json"


def text() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
