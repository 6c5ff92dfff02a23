import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from opengem.errors import DataError
from opengem.report import write_report
from opengem.report.folder import read_report_files
from opengem.report.page import QUICKSTART, RUN

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects ids, links and the text of each section."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.text, self.section = [], [], [], {}, None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        self.links += [found[key] for key in ("href", "xlink:href", "src") if found.get(key)]
        if tag == "section":
            self.section = found["id"]
            self.text[self.section] = ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.section:
            self.text[self.section] += data


def page_of(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(finished, tmp_path_factory):
    return write_report(finished, tmp_path_factory.mktemp("out") / "deep" / "page.html").read_text(
        encoding="utf-8"
    )


def test_the_page_is_well_formed_and_self_contained(whole):
    page = Page(whole)
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert "<script" not in whole
    outside = {found for found in re.findall(r"https?://[^\s\"']+", whole) if "w3.org" not in found}
    assert outside == set()
    assert "@import" not in whole
    assert len(whole) < 1_500_000


def test_light_dark_and_print(whole):
    assert "prefers-color-scheme: dark" in whole
    assert "@media print" in whole
    names = set(re.findall(r"var\(--([a-z]+)\)", whole))
    style = whole[: whole.index("</style>")]
    for name in names:
        assert len(re.findall(rf"--{name}: #", style)) == 3, name


def test_every_section_is_there_and_drawn(whole):
    page = Page(whole)
    assert list(page.text) == [
        "headline", "models", "relative", "transfer", "surfaces", "reliability", "learning", "histories", "rejected",
        "time", "example", "repeat", "provenance",
    ]  # fmt: skip
    assert len(page.text) == len(QUICKSTART)
    assert "Could not be drawn" not in whole
    assert whole.count("<svg ") == 10


def test_the_numbers_are_those_of_the_files(finished, whole):
    page, files = Page(whole), read_report_files(finished)
    for name, tasks in files.models.items():
        for task, values in tasks.items():
            shown = re.search(r"\d\.\d+", f"{values['ne']:.3f}").group()
            assert shown in page.text["models"], (name, task)
    change = files.comparison("teacher", files.best_baseline("click"))["tasks"]["click"]["total"][
        "differences"
    ]
    assert (
        f"beats the best baseline, DCNv2: NE −{-change['ne_percent']['value']:.1f}%" in page.text["headline"]
    )
    assert "0.56 [0.31, 0.82]" in page.text["headline"]
    assert f"{100 * files.summary['gap_closed']['like']:.0f}%" in page.text["transfer"]
    assert "no positive in 75 rows" in page.text["surfaces"]
    assert "null key user_id" in page.text["rejected"]
    assert "read40,120\nkept40,000\nquarantined100\nexact copies, kept once20" in page.text["rejected"]
    assert "7 more rows of events were not read" in page.text["rejected"]
    assert "not accounted for" not in page.text["rejected"]
    assert "events organic1,200,000" in page.text["histories"]
    assert "22.9 times smaller" in page.text["histories"]
    assert "90.0 s · 42%" in page.text["time"]
    assert "opengem quickstart --out runs/demo" in page.text["repeat"]
    assert "0123456789ab" in page.text["provenance"]


def test_verdicts_follow_the_intervals(folder):
    comparisons = json.loads((folder / "comparisons.json").read_text())
    intervals = {"click": (-2.0, -3.0, -1.0), "like": (2.0, 1.0, 3.0)}
    for comparison in comparisons:
        for task, (value, low, high) in intervals.items():
            total = comparison["tasks"][task]["total"]
            total["differences"]["ne_percent"] = {"value": value, "low": low, "high": high}
    (folder / "comparisons.json").write_text(json.dumps(comparisons))
    text = page_of(folder).text["headline"]
    assert "click: the teacher beats the best baseline, DCNv2: NE −2.0% [−3.0, −1.0]" in text
    assert "like: the teacher is worse than the best baseline, DIN: NE +2.0% [+1.0, +3.0]" in text
    for comparison in comparisons:
        comparison["tasks"]["click"]["total"]["differences"]["ne_percent"] = {
            "value": -1,
            "low": -2,
            "high": 1,
        }
    (folder / "comparisons.json").write_text(json.dumps(comparisons))
    assert "click: no difference shown between the teacher and the best" in page_of(folder).text["headline"]


def test_rows_that_went_astray_are_said(folder):
    summary = json.loads((folder / "summary.json").read_text())
    summary["rows"]["kept"] -= 5
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "5 of the rows read are not accounted for" in page_of(folder).text["rejected"]


def test_the_same_files_give_the_same_page(finished, tmp_path, whole):
    assert write_report(finished, tmp_path / "again.html").read_text(encoding="utf-8") == whole


def test_a_run_folder_has_a_page_of_its_own(folder):
    run = folder / "runs" / "student"
    out = write_report(run)
    assert out == run / "report.html"
    page = Page(out.read_text(encoding="utf-8"))
    assert len(page.text) == len(RUN)
    assert "NE 1." in page.text["headline"]
    assert "Could not be drawn" not in str(page.text)


OPTIONAL = {
    "summary.json": ("models", "summary.json names no model (not there)"),
    "comparisons.json": ("relative", "comparisons.json is not used: not there"),
    "ranked.json": ("example", "ranked.json is not there"),
    "dataset": ("histories", "dataset/manifest.json is not there"),
    "runs/teacher/metrics.jsonl": ("learning", "runs/teacher/metrics.jsonl not there"),
    "runs/teacher/eval.json": ("provenance", "runs/teacher/eval.json"),
    "runs": ("surfaces", "No eval.json is there"),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_missing_file_is_said_in_its_section(folder, name):
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    section, words = OPTIONAL[name]
    page = page_of(folder)
    assert words in page.text[section]
    assert "Could not be drawn" not in str(page.text)


def test_a_bare_folder_still_gives_a_page(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    page = page_of(tmp_path)
    assert len(page.text) == len(QUICKSTART)
    assert "No verdict" in page.text["headline"]
    assert "Could not be drawn" not in str(page.text)


@pytest.mark.parametrize(
    "content", ['{"models": 3}', '{"models": {"teacher": {"click": 1}}}', '{"seconds": []}', "["]
)
def test_a_summary_of_another_form_stops_nothing(folder, content):
    (folder / "summary.json").write_text(content)
    page = page_of(folder)
    assert len(set(page.text)) == len(QUICKSTART)
    assert page.text["learning"]


def test_a_broken_evaluation_of_a_run_stops_nothing(folder):
    run = folder / "runs" / "teacher"
    (run / "eval.json").write_text('{"tasks": {"click": {}}}')
    page = page_of(run)
    assert "expected form" in page.text["provenance"]
    assert page.text["learning"]


def test_models_without_values_or_intervals(folder):
    summary = json.loads((folder / "summary.json").read_text())
    summary["models"] = {
        "teacher": {"click": {"ne": None, "auc": 0.7, "auc_interval": [None, None]}},
        "my <b>model</b>": {"click": {"ne": 0.9}},
    }
    summary.pop("transfer")
    summary.pop("gap_closed")
    (folder / "summary.json").write_text(json.dumps(summary))
    page = page_of(folder)
    assert "my <b>model</b>" in page.text["models"]
    assert "no transfer ratio" in page.text["transfer"]
    assert "best possible NE" in page.text["transfer"]
    assert "Could not be drawn" not in str(page.text)


def test_other_folders_are_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(DataError, match="quickstart folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_import_is_light():
    heavy = ("matplotlib", "jinja2", "torch", "pyarrow", "numpy")
    code = f"import sys, opengem.report; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
