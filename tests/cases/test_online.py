"""ON07: a file that comes later, though its rows are old."""

import json
import shutil

from opengem import ingest
from opengem.schema import load_schema
from tests.cases.inputs import DAYS


def test_on07_a_late_file(case):
    late = case("on07_late_file.py", own=True)
    late.schema["splits"] = DAYS
    assert json.loads(late.command("--json").stdout)["counts"]["examples"] == 880
    shutil.copy(late.folder / "late" / "late.parquet", late.folder / "impressions" / "late.parquet")
    again = json.loads(late.command("--json").stdout)
    assert (again["counts"]["examples"], again["fresh"]) == (960, True)
    assert "was known at" in again["why"]
    at_once = ingest(load_schema(late.write_schema(), late.folder), late.out / "at once")
    assert again["data_fingerprint"] == at_once.manifest["data_fingerprint"]
    assert "nothing to do" in late.command().stdout
