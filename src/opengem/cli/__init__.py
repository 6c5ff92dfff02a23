"""The command line: one thin module a verb."""

from opengem.cli.app import main

__all__ = ["main"]
