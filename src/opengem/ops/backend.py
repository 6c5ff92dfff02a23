"""Choice of the backend that runs an operation."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from opengem.errors import BackendUnavailable, ConfigError, nearest

_log = logging.getLogger(__name__)
_said: set[tuple[str, str]] = set()


def _no_obstacle(*_args, **_kwargs) -> str:
    return ""


def _always(*_args, **_kwargs) -> bool:
    return True


@dataclass(frozen=True)
class Backend:
    """One way to run an operation.

    Attributes:
        name: Name by which a user asks for it.
        run: Function with the operation's full signature, less `backend`.
        obstacle: Called like `run`; returns why this backend cannot run on these arguments here, or an
            empty string. It must not read values of tensors.
        suits: Called like `run`; whether `auto` may choose it for these arguments (a question of speed).
    """

    name: str
    run: Callable
    obstacle: Callable[..., str] = _no_obstacle
    suits: Callable[..., bool] = _always


def call(operation: str, backends: tuple[Backend, ...], wanted: str, *args, **kwargs):
    """Run `operation` on the backend `wanted`, or for `auto` on the first of `backends` that can.

    Args:
        operation: Name of the operation, for messages.
        backends: In order of preference; the last one, the reference, always runs.
        wanted: `auto` or the name of a backend.
        *args: Passed to the backend.
        **kwargs: Passed to the backend.

    Returns:
        What the backend returns.

    Raises:
        ConfigError: No backend has this name.
        BackendUnavailable: The named backend cannot run here; nothing else is tried.
    """
    if wanted != "auto":
        names = [b.name for b in backends]
        if wanted not in names:
            hint = nearest(wanted, [*names, "auto"])
            raise ConfigError(f'{operation}: backend must be auto or one of {names}, got "{wanted}"{hint}')
        chosen = backends[names.index(wanted)]
        if reason := chosen.obstacle(*args, **kwargs):
            raise BackendUnavailable(
                f'{operation}: backend "{wanted}" cannot run: {reason}; choose "auto" or another of {names}'
            )
    else:
        chosen = next(b for b in backends if not b.obstacle(*args, **kwargs) and b.suits(*args, **kwargs))
    if (operation, chosen.name) not in _said and not torch.compiler.is_compiling():
        _said.add((operation, chosen.name))
        _log.info("%s runs on backend %s", operation, chosen.name)
    return chosen.run(*args, **kwargs)
