"""The figures of a report, each one function: plain values in, SVG out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

from opengem.report.style import COLORS, FAINT, INK, STYLE, look, new_figure, to_svg

P = ParamSpec("P")


class Point(NamedTuple):
    """A value with the ends of its interval, None where there is none."""

    value: float
    low: float | None
    high: float | None


def _styled(draw: Callable[P, str]) -> Callable[P, str]:
    """Run a figure under the style sheet, whatever the reader's own settings are."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> str:
        from matplotlib import rc_context, rcdefaults, rcParams

        with rc_context():
            rcdefaults()
            rcParams.update(STYLE)
            return draw(*args, **kwargs)

    return inside


def _dot(axes: Any, point: Point, y: float, name: str, place: int = 0, *, label: str = "") -> None:
    """One value as a marker and its interval as a bar, at height y."""
    style = look(name, place)
    if point.low is not None and point.high is not None:
        axes.plot([point.low, point.high], [y, y], color=COLORS[style.color], linewidth=2.2, alpha=0.55)
    hollow = name == "best_possible"
    axes.plot(
        [point.value],
        [y],
        linestyle="none",
        marker=style.marker,
        markersize=6,
        color=COLORS[style.color],
        markerfacecolor="none" if hollow else COLORS[style.color],
        label=label or None,
    )


def _rows(axes: Any, labels: Sequence[str]) -> None:
    """Label rows from top to bottom."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=6)


def _legend(figure: Any, axes: Any, columns: int = 4) -> None:
    """One legend above all panels."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, borderaxespad=0.2)


@_styled
def models_ne(values: Mapping[str, Mapping[str, Point]], name: str) -> str:
    """Draw NE of each model with its interval, one panel a task.

    Args:
        values: task to model to NE.
        name: prefix of ids in the SVG.

    Returns:
        The SVG.
    """
    models = list(dict.fromkeys(model for of_task in values.values() for model in of_task))
    figure = new_figure(0.9 + 0.27 * len(models))
    panels = figure.subplots(1, len(values), squeeze=False, sharey=True)[0]
    for axes, (task, of_task) in zip(panels, values.items(), strict=True):
        for place, model in enumerate(models):
            if model in of_task:
                _dot(axes, of_task[model], place, model, place)
        if "best_possible" in of_task:
            axes.axvline(of_task["best_possible"].value, color=COLORS["grey"], linestyle="--", linewidth=1)
        _rows(axes, [look(model).label for model in models])
        axes.set_title(task)
        axes.set_xlabel("NE (lower is better)")
    return to_svg(figure, name, "Normalized entropy of each model with its 95% interval")


@_styled
def changes(values: Mapping[str, Sequence[tuple[str, Point]]], name: str, xlabel: str, label: str) -> str:
    """Draw relative changes with intervals around the zero line, one panel a task.

    Args:
        values: task to rows of (what is compared, change in percent).
        name: prefix of ids in the SVG.
        xlabel: what the change is, with its unit.
        label: what the figure shows.

    Returns:
        The SVG.
    """
    rows = list(dict.fromkeys(row for of_task in values.values() for row, _ in of_task))
    figure = new_figure(1.0 + 0.29 * len(rows))
    panels = figure.subplots(1, len(values), squeeze=False, sharey=True)[0]
    for axes, (task, of_task) in zip(panels, values.items(), strict=True):
        axes.axvline(0, color=INK, linewidth=1)
        for row, point in of_task:
            shown = point.low is not None and point.high is not None and point.low <= 0 <= point.high
            color = (
                COLORS["grey"]
                if shown or point.low is None
                else COLORS["blue" if point.value < 0 else "orange"]
            )
            y = rows.index(row)
            if point.low is not None and point.high is not None:
                axes.plot([point.low, point.high], [y, y], color=color, linewidth=2.2, alpha=0.6)
            marker = "o" if shown else ("<" if point.value < 0 else ">")
            axes.plot([point.value], [y], marker=marker, color=color, markersize=6, linestyle="none")
        _rows(axes, rows)
        axes.set_title(task)
        axes.set_xlabel(xlabel)
    return to_svg(figure, name, label)


@_styled
def surfaces(
    values: Mapping[str, Mapping[str, tuple[Point | None, Point | None]]], task: str, name: str
) -> str:
    """Draw NE and calibration per surface with intervals.

    Args:
        values: model to surface to (NE, calibration), None where undefined.
        task: name of the task.
        name: prefix of ids in the SVG.

    Returns:
        The SVG.
    """
    rows = list(dict.fromkeys(surface for of_model in values.values() for surface in of_model))
    figure = new_figure(1.3 + (0.16 + 0.15 * len(values)) * len(rows))
    panels = figure.subplots(1, 2, sharey=True)
    for part, (axes, title) in enumerate(
        zip(panels, ("NE (lower is better)", "calibration (ideal 1)"), strict=True)
    ):
        if part == 1:
            axes.axvline(1, color=INK, linewidth=1)
        for place, (model, of_model) in enumerate(values.items()):
            offset = 0.62 * ((place + 0.5) / len(values) - 0.5)
            named = False
            for surface, points in of_model.items():
                point = points[part]
                if point is not None:
                    text = "" if named else look(model).label
                    _dot(axes, point, rows.index(surface) + offset, model, place, label=text)
                    named = True
        _rows(axes, rows)
        axes.set_xlabel(title)
    panels[0].set_title(task)
    _legend(figure, panels[0])
    return to_svg(
        figure, name, f"Normalized entropy and calibration of {task} per surface with 95% intervals"
    )


class Curve(NamedTuple):
    """A line over examples seen."""

    model: str
    examples: list[float]
    values: list[float]


@_styled
def learning(panels: Sequence[tuple[str, str, Sequence[Curve]]], name: str) -> str:
    """Draw curves against examples seen, two panels a row.

    Args:
        panels: (title, label of the y axis, curves); a y axis that says calibration gets a line at 1.
        name: prefix of ids in the SVG.

    Returns:
        The SVG.
    """
    high = math.ceil(len(panels) / 2)
    wide = min(2, len(panels))
    figure = new_figure(0.6 + 2.4 * high)
    grid = figure.subplots(high, wide, squeeze=False)
    legend: dict[str, Any] = {}
    for axes, (title, ylabel, curves) in zip(grid.flat, panels, strict=False):
        if ylabel.startswith("calibration"):
            axes.axhline(1, color=INK, linewidth=1)
        for place, curve in enumerate(curves):
            style = look(curve.model, place)
            few = len(curve.values) <= 12
            (line,) = axes.plot(
                curve.examples,
                curve.values,
                color=COLORS[style.color],
                linestyle=style.dash,
                marker=style.marker if few else None,
                markersize=4.5,
            )
            legend.setdefault(style.label, line)
        low, top = robust_range([value for curve in curves for value in curve.values])
        axes.set_ylim(low, top)
        axes.set_title(title)
        axes.set_ylabel(ylabel)
        axes.set_xlabel("examples seen")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    if len(legend) > 1:
        figure.legend(
            list(legend.values()), list(legend), loc="outside upper left", ncols=4, borderaxespad=0.2
        )
    return to_svg(figure, name, "Learning curves: " + ", ".join(title for title, _, _ in panels))


def robust_range(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis that leave out the top twentieth where it stands far above the rest (first steps)."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    usual = ordered[int(0.95 * (len(ordered) - 1))]
    if high - low > 2 * (usual - low) > 0:
        high = usual
    margin = 0.06 * (high - low) or 0.02 * abs(high) or 0.01
    return low - margin, high + margin


def short_count(value: float) -> str:
    """Write an axis count briefly: 950, 12k, 1.5M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


@_styled
def reliability(values: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]], name: str) -> str:
    """Draw observed rate against mean prediction by decile, with 95% Wilson intervals, one panel a task.

    Args:
        values: task to model to bins of (predicted, observed, count).
        name: prefix of ids in the SVG.

    Returns:
        The SVG.
    """
    figure = new_figure(4.1)
    panels = figure.subplots(1, len(values), squeeze=False)[0]
    for axes, (task, of_task) in zip(panels, values.items(), strict=True):
        top = 0.0
        for place, (model, bins) in enumerate(of_task.items()):
            style = look(model, place)
            x = [part["predicted"] for part in bins]
            y = [part["observed"] for part in bins]
            bars = [wilson(part["observed"], part["count"]) for part in bins]
            below = [value - low for value, (low, _) in zip(y, bars, strict=True)]
            above = [high - value for value, (_, high) in zip(y, bars, strict=True)]
            axes.errorbar(
                x,
                y,
                yerr=[below, above],
                color=COLORS[style.color],
                marker=style.marker,
                markersize=5,
                linestyle=style.dash,
                linewidth=1.2,
                elinewidth=1.2,
                capsize=2,
                label=style.label,
            )
            top = max([top, *x, *(high for _, high in bars)])
        axes.plot([0, top * 1.04], [0, top * 1.04], color=INK, linewidth=1)
        axes.set(xlim=(0, top * 1.04), ylim=(0, top * 1.04), aspect="equal")
        axes.locator_params(nbins=6)
        axes.set_title(task)
        axes.set_xlabel("mean prediction of the decile")
        axes.set_ylabel("observed rate")
    _legend(figure, panels[0])
    return to_svg(figure, name, "Reliability: observed rate against mean prediction by decile")


def wilson(rate: float, rows: float) -> tuple[float, float]:
    """Give the 95% Wilson interval of a rate over independent rows.

    Args:
        rate: observed share of positives, in [0, 1].
        rows: number of rows, above 0.

    Returns:
        (low, high), around the rate, in [0, 1].

    Source:
        Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    z = 1.959964
    center = (rate + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z * math.sqrt(rate * (1 - rate) / rows + z * z / (4 * rows * rows)) / (1 + z * z / rows)
    return min(max(0.0, center - half), rate), max(min(1.0, center + half), rate)


@_styled
def histograms(values: Mapping[str, tuple[Sequence[float], Sequence[float]]], name: str) -> str:
    """Draw how long histories are, one panel a stream; bins are drawn equally wide, whatever their edges.

    Args:
        values: stream to (edges, counts); one edge more than counts, or as many (the last bin is open).
        name: prefix of ids in the SVG.

    Returns:
        The SVG.
    """
    figure = new_figure(2.5 * math.ceil(len(values) / 3) + 0.1)
    wide = min(3, len(values))
    grid = figure.subplots(math.ceil(len(values) / 3), wide, squeeze=False)
    for axes, (stream, (edges, counts)) in zip(grid.flat, values.items(), strict=False):
        total = sum(counts) or 1
        axes.bar(
            [i + 0.5 for i in range(len(counts))],
            [100 * c / total for c in counts],
            width=0.92,
            color=COLORS["blue"],
            alpha=0.85,
        )
        step = math.ceil(len(edges) / (13 if wide < 3 else 8))
        ticks = range(0, len(edges), step)
        axes.set_xticks(list(ticks), [short_count(edges[i]) for i in ticks])
        axes.grid(axis="x", visible=False)
        axes.set_title(stream)
        axes.set_xlabel("events in the history")
        axes.set_ylabel("share (%)")
    for axes in grid.flat[len(values) :]:
        axes.set_axis_off()
    return to_svg(figure, name, "Lengths of histories per stream")


@_styled
def durations(parts: Sequence[tuple[str, float]], name: str, label: str) -> str:
    """Draw seconds as bars, each with its share of the total.

    Args:
        parts: (name, seconds) from top to bottom.
        name: prefix of ids in the SVG.
        label: what the figure shows.

    Returns:
        The SVG.
    """
    total = sum(value for _, value in parts) or 1.0
    figure = new_figure(0.7 + 0.27 * len(parts))
    axes = figure.subplots()
    for place, (_, value) in enumerate(parts):
        axes.barh(place, value, height=0.62, color=COLORS["blue"], alpha=0.85)
        text = f"{value:,.1f} s · {100 * value / total:.0f}%"
        place_at = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (value, place), color=INK, **place_at)
    _rows(axes, [part for part, _ in parts])
    axes.set_xlim(0, 1.22 * max(value for _, value in parts) or 1.0)
    axes.spines["left"].set_color(FAINT)
    axes.set_xlabel("seconds")
    return to_svg(figure, name, label)
