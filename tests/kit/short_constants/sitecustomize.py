"""Give a process constants of its own: no settings, because nobody who keeps data would change them.

Python imports this module when it starts, if its folder is in PYTHONPATH (`short_durations.constants_environment`).
"""

from __future__ import annotations

import json
import os
from typing import Any, cast

from refstore.configuration.settings import ApiSettings, ReaperSettings, S3Settings
from refstore.core.safety import Safety

for kind in (Safety, ReaperSettings, ApiSettings, S3Settings):
    given = json.loads(os.environ.get("SHORT_CONSTANTS", "{}")).get(kind.__name__, {})
    cast("Any", kind.__init__).__kwdefaults__.update(given)
