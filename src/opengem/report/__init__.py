"""One self-contained HTML page, drawn only from the files of a quickstart or of a run."""

from opengem.report.page import write_report

__all__ = ["write_report"]
