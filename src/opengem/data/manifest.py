"""The manifest of a data set, read and held against its files."""

import json
from pathlib import Path
from typing import Any

from opengem.data.checksum import sha256_of
from opengem.errors import DataError
from opengem.schema.inputs import InputSpec

FORMAT = 3
"""Version of the layout on disk that this code writes and reads."""


def open_manifest(folder: Path, *, verify: bool) -> tuple[dict[str, Any], InputSpec]:
    """Return the manifest of the data set in `folder`, and the inputs that it names.

    Args:
        folder: The folder.
        verify: Compare the checksums of all files with those of the manifest, not only their sizes.

    Raises:
        DataError: The folder holds no finished data set, another format, or files that do not fit.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        inputs = InputSpec.from_dict(manifest["inputs"]) if manifest.get("format") == FORMAT else None
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} must hold a finished data set. Received: no {Path(error.filename).name}. "
            "Make one with ingest."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} holds a damaged manifest.json ({error}). Run ingest again.") from error
    if inputs is None:
        raise DataError(
            f"{folder}/manifest.json must be of format {FORMAT}. Received: {manifest.get('format')}. "
            "Run ingest again with this version."
        )
    for name, facts in manifest.get("files", {}).items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            raise DataError(
                f"{path} must have {facts['bytes']} bytes as the manifest says. "
                f"Received: {'no such file' if size is None else f'{size} bytes'}. Run ingest again."
            )
        if verify and sha256_of(path) != facts["sha256"]:
            raise DataError(
                f"{path} must have the checksum that the manifest says; its content has changed since it was "
                f"written. Make the data set anew: remove {folder} and run ingest."
            )
    return manifest, inputs
