"""Hardware and versions beside every measured row."""

import json
from typing import Any

from opengem.training.run_folder import environment


def emit(row: dict[str, Any]) -> None:
    """Print one JSON line with its provenance."""
    here = environment()
    keep = ("time", "processor", "cores", "versions", "commit")
    print(json.dumps({**row, **{k: here[k] for k in keep}}), flush=True)
