import re
from xml.etree import ElementTree

import matplotlib
import pytest
from scipy.stats import binomtest

from opengem.report import plots
from opengem.report.plots import Curve, Point
from opengem.report.style import COLORS, look

DECILES = [{"predicted": 0.05 * i, "observed": 0.04 * i, "count": 100} for i in range(1, 11)]


def draw_all():
    """Every figure, with the odd values that come up."""
    point, bare = Point(0.9, 0.85, 0.95), Point(0.8, None, None)
    return {
        "models": plots.models_ne({"click": {"teacher": point, "best_possible": bare}}, "a"),
        "changes": plots.changes(
            {"click": [("a vs b", Point(-2, -3, -1)), ("c vs d", Point(1, -1, 3)), ("e", Point(2, 1, 3))]},
            "b",
            "change of NE (%)",
            "changes",
        ),
        "surfaces": plots.surfaces(
            {"teacher": {"feed": (point, None), "a<b & $x$": (bare, point)}}, "click", "c"
        ),
        "learning": plots.learning(
            [
                ("train", "NE", [Curve("teacher", [1, 2, 3], [1.0, 0.9, 0.8])]),
                ("v", "NE", [Curve("x", [1], [1.0])]),
            ],
            "d",
        ),
        "reliability": plots.reliability({"click": {"teacher": DECILES, "student": DECILES[:1]}}, "e"),
        "histograms": plots.histograms({"organic": ([0, 1, 10], [5, 7]), "none": ([0, 1], [0])}, "f"),
        "durations": plots.durations([("forward", 3.0), ("other", 0.0)], "g", "seconds"),
    }


@pytest.fixture(scope="module")
def drawn():
    return draw_all()


def test_figures_are_whole_xml_and_live_without_the_outside(drawn):
    for name, svg in drawn.items():
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("svg"), name
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        for element in root.iter():
            for key, value in element.attrib.items():
                assert not (key.endswith("href") and not value.startswith("#")), name


def test_ids_are_the_figures_own_and_every_reference_is_met(drawn):
    seen = set()
    for svg in drawn.values():
        ids = set(re.findall(r'id="([^"]+)"', svg))
        assert not ids & seen
        seen |= ids
        references = re.findall(r'href="#([^"]+)"', svg) + re.findall(r"url\(#([^)]+)\)", svg)
        assert references
        assert set(references) <= ids


def test_text_is_text_of_at_least_nine_points(drawn):
    for name, svg in drawn.items():
        sizes = [float(size) for size in re.findall(r"font(?:-size)?: ?[^;\"]*?([\d.]+)px", svg)]
        assert sizes, name
        assert min(sizes) >= 9, name
        assert "<text" in svg
    assert "a&lt;b &amp; $x$" in drawn["surfaces"]


def test_colours_are_variables_that_the_page_sets(drawn):
    for name, svg in drawn.items():
        assert not [color for color in COLORS.values() if color in svg.lower()], name
        assert "var(--ink)" in svg
        assert not re.findall(r"(?:fill|stroke): #(?!ffffff)[0-9a-f]{6}", svg), name


def test_a_figure_is_the_same_every_time_and_whatever_the_readers_settings(drawn):
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert draw_all() == drawn
        assert matplotlib.rcParams["font.size"] == 30


def test_a_value_stands_where_it_should():
    """The marker of a value lies between the ends of its interval, in proportion."""
    svg = plots.changes({"t": [("a", Point(-1.0, -4.0, 0.5))]}, "n", "x", "label")
    line = re.findall(r'<path d="M ([\d.]+) [\d.]+ \s*L ([\d.]+) [\d.]+ \s*"[^>]*stroke-opacity', svg)
    low, high = map(float, line[0])
    marker = float(re.findall(r'<use xlink:href="#[^"]+" x="([\d.]+)"[^>]*stroke: var\(--grey\)', svg)[-1])
    assert (marker - low) / (high - low) == pytest.approx(3.0 / 4.5, abs=1e-3)


def test_wilson_is_scipys():
    for positives, rows in ((0, 10), (3, 40), (10, 10), (250, 1000)):
        expected = binomtest(positives, rows).proportion_ci(method="wilson")
        assert plots.wilson(positives / rows, rows) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_the_axis_leaves_out_a_wild_beginning_only():
    curve = [9.0, 3.0, *[1.0 - 0.001 * i for i in range(98)]]
    low, high = plots.robust_range(curve)
    assert low < min(curve)
    assert high < 1.2
    calm = [1.0, 0.9, 0.8]
    low, high = plots.robust_range(calm)
    assert low < 0.8
    assert high > 1.0
    low, high = plots.robust_range([0.5])
    assert low < 0.5 < high


def test_counts_on_axes_are_short():
    assert [plots.short_count(v) for v in (0, 950, 12_000, 1_500_000, 2e9)] == [
        "0",
        "950",
        "12k",
        "1.5M",
        "2G",
    ]


def test_models_differ_in_colour_and_marker():
    names = ["teacher", "student", "student_alone", "din", "dcnv2", "dlrm", "logistic_regression"]
    assert len({look(name).color for name in names}) == len(names)
    assert len({look(name).marker for name in names}) == len(names)
    assert look("my_model", 2).label == "my_model"
