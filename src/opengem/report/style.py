"""The one style sheet of all figures: colours, text sizes, and how a figure becomes SVG inside a page.

Colours are those of Okabe and Ito, told apart by colour-blind readers; every series has its own marker too,
so a page stays readable in grey. In the SVG they become CSS variables, which the page sets for light and
for dark.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#1b1f24", "#d4d7db"
COLORS = {
    "blue": "#0072b2",
    "orange": "#d55e00",
    "green": "#009e73",
    "sky": "#56b4e9",
    "amber": "#e69f00",
    "purple": "#cc79a7",
    "grey": "#7a828c",
}
WIDTH = 9.2
"""Width of a figure in inches."""

STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "opengem",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "axes.unicode_minus": True,
}


class Look(NamedTuple):
    """Colour, marker and dash of a series, and the name shown to readers."""

    color: str
    marker: str
    dash: str
    label: str


_MODELS = {
    "teacher": Look("blue", "o", "-", "teacher"),
    "student": Look("orange", "s", "-", "student"),
    "student_alone": Look("purple", "D", "--", "student alone"),
    "din": Look("sky", "^", "-.", "DIN"),
    "dcnv2": Look("green", "v", "-.", "DCNv2"),
    "dlrm": Look("amber", "P", ":", "DLRM"),
    "logistic_regression": Look("grey", "X", ":", "logistic regression"),
    "best_possible": Look("grey", "*", "--", "best possible"),
}
_MARKERS = "osD^vPX"


def look(name: str, place: int = 0) -> Look:
    """Give the look of a model, the same in all figures; an unknown name takes one by its place."""
    if name in _MODELS:
        return _MODELS[name]
    colors = list(COLORS)
    return Look(colors[place % len(colors)], _MARKERS[place % len(_MARKERS)], "-", name)


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Make an empty figure, to be filled inside ``matplotlib.rc_context(STYLE)``; size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.patch.set_alpha(0)
    return figure


def to_svg(figure: Figure, name: str, label: str) -> str:
    """Draw the figure as an SVG element that can stand inside a page.

    Args:
        figure: the figure; its axes are made transparent.
        name: prefix of all ids in the SVG, so that two figures of a page never share one.
        label: what the figure shows, read aloud to those who cannot see it.

    Returns:
        ``<svg ...>``; ink, grid and series colours are CSS variables.
    """
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for variable, color in {"ink": INK, "faint": FAINT, **COLORS}.items():
        svg = re.sub(color, f"var(--{variable})", svg, flags=re.IGNORECASE)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{_attribute(label)}" ', 1)


def _attribute(text: str) -> str:
    """Text that may stand between double quotes in XML."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
