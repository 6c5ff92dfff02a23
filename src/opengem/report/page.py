"""Putting the page together: read the files, build the sections, fill the template, write one HTML file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from opengem.report import results, story
from opengem.report.folder import ReportFiles, read_report_files
from opengem.report.parts import Section

Builder = Callable[[ReportFiles], Section]

QUICKSTART: tuple[Builder, ...] = (
    results.headline,
    results.models,
    results.relative,
    results.transfer,
    results.per_surface,
    results.reliability,
    story.learning,
    story.histories,
    story.rejected,
    story.time,
    story.example,
    story.repeat,
    story.provenance,
)
"""Sections of a quickstart's page, in order."""

RUN: tuple[Builder, ...] = (
    results.headline,
    results.models,
    results.per_surface,
    results.reliability,
    story.learning,
    story.time,
    story.repeat,
    story.provenance,
)
"""Sections of the page of a single run."""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Draw one self-contained HTML page from the files of a quickstart folder or of a run folder.

    Figures are inline SVG and the style is inline, so the file can be sent to others; it has no script and
    asks for nothing from elsewhere. What a missing or broken file would have shown is said in its section.

    Args:
        folder: see ``report.folder.read_report_files``.
        out: the file to write; default ``report.html`` in the folder. An existing file is replaced.

    Returns:
        The file.

    Raises:
        DataError: the folder is neither a quickstart's nor a run's.
    """
    folder = Path(folder)
    out = Path(out) if out is not None else folder / "report.html"
    files = read_report_files(folder)
    sections = [_build(builder, files) for builder in (RUN if files.is_run else QUICKSTART)]
    page = render(files, sections)
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page)
        Path(temporary).chmod(0o644)
        os.replace(temporary, out)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return out


def _build(builder: Builder, files: ReportFiles) -> Section:
    """Build one section; where a file holds something else than it should, the section says so."""
    try:
        return builder(files)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        name = builder.__name__
        section = Section(id=name, title=name.replace("_", " ").capitalize())
        kind = type(error).__name__
        section.note(f"Could not be drawn: a file does not have the expected form ({kind}: {error}).")
        return section


def render(files: ReportFiles, sections: list[Section]) -> str:
    """Fill the template.

    Args:
        files: for the title.
        sections: in order.

    Returns:
        The HTML.
    """
    import jinja2

    source = resources.files("opengem.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    subject = "Run" if files.is_run else "Teacher and students"
    return environment.from_string(source).render(name=files.name, subject=subject, sections=sections)
