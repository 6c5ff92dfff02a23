"""`opengem doctor`: what is here, what fits together, and what would run."""

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet

NAME = "doctor"


def command(as_json: Json = False, quiet: Quiet = False) -> None:
    """Check versions that must match, optional parts, and which backend would run.

    Examples:
        opengem doctor
        opengem doctor --json
    """
    from opengem.errors import CheckFailed
    from opengem.training.doctor import diagnose

    console = Console(as_json, quiet)
    checks = diagnose()
    words = {"good": "ok  ", "absent": "--  ", "bad": "BAD "}
    console.result(
        {"checks": [c.__dict__ for c in checks]},
        *(f"{words[c.state]} {c.name:22} {c.finding}" for c in checks),
    )
    bad = [c.name for c in checks if c.state == "bad"]
    if bad:
        raise CheckFailed(f"what is installed must fit together. Not so: {', '.join(bad)}")
