"""The whole loop by one call: logs, teacher, labels, student, baselines, package, ranked ads, report."""

from opengem.loop.settings import QuickstartSettings, load_settings

__all__ = ["QuickstartSettings", "load_settings"]
