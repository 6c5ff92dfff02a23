"""The list of covered cases is true: of its stages, no id without a test, no test without an id, none left out."""

import re
from pathlib import Path

import pytest

from tests.cases.covered import COVERED
from tests.cases.inputs import CASES

IDS = {i for ids in COVERED.values() for i in ids}
STAGES = {i[:2] for i in IDS}


def test_each_covered_case_has_a_test_and_each_test_a_covered_case():
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    found = {
        f"{stage}{number}".upper()
        for t in texts
        for stage, number in re.findall(r"def test_([a-z]{2})(\d\d)_", t)
    }
    assert {i for i in found if i[:2] in STAGES} == IDS, "add the stage or the id to covered.py"


def test_no_case_of_a_covered_stage_is_left_out():
    if not CASES.is_dir():
        pytest.skip(f"the catalogue of cases must lie in {CASES}: there is no such folder")
    catalogue = set(re.findall(r"^### ([A-Z]{2}\d\d) ", (CASES / "README.md").read_text(), re.MULTILINE))
    assert catalogue >= IDS
    assert {i for i in catalogue if i[:2] in STAGES} == IDS
