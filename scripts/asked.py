"""Print a fingerprint of what pyproject.toml asks for; the locks carry it, so that a change without `make lock` is
seen.
"""

import hashlib
import json
import tomllib
from pathlib import Path

document = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
project = document["project"]
asked = [
    project["requires-python"],
    project["dependencies"],
    project["optional-dependencies"],
    document["dependency-groups"],
]
print(hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest())
