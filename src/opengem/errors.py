"""The few exception types of OpenGEM, and the exit code that each one means on the command line."""

import difflib
from collections.abc import Iterable


class OpenGEMError(Exception):
    """Base of every error that is meant for the user: it says what must hold, what came, and what to change."""

    exit_code = 1


class ConfigError(OpenGEMError, ValueError):
    """A setting, schema entry or argument is wrong."""

    exit_code = 2


class DataError(OpenGEMError, ValueError):
    """A table, file or value breaks what the schema says of it."""

    exit_code = 3


class BackendUnavailable(OpenGEMError, RuntimeError):  # noqa: N818 - reads as the fact that it states
    """A backend that was asked for by name cannot run here."""

    exit_code = 4


class CheckFailed(OpenGEMError):  # noqa: N818
    """A check or comparison was made and did not hold."""

    exit_code = 1


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint `` (did you mean "x"?)`` for the known word nearest to `word`, or an empty string."""
    match = nearest_word(word, known)
    return f' (did you mean "{match}"?)' if match else ""


def nearest_word(word: str, known: Iterable[str]) -> str:
    """Return the known word nearest to `word`, or an empty string where none is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else ""
