"""The server of a package: its address, its processes and threads, and how it is started."""

import functools
import ipaddress
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opengem.errors import BackendUnavailable, ConfigError
from opengem.serving.live import LivePackage
from opengem.serving.request import Limits
from opengem.serving.service import ServiceLimits, create_app

LOOPBACK = "127.0.0.1"
_SHORTEST_TOKEN = 16
_SWITCH_SECONDS = 2e-4
_LOGS = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {"format": "%(message)s"},
        "full": {"format": "%(asctime)s %(levelname)s %(message)s"},
    },
    "handlers": {
        "out": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stdout"},
        "err": {"class": "logging.StreamHandler", "formatter": "full", "stream": "ext://sys.stderr"},
    },
    "loggers": {
        "opengem.access": {"handlers": ["out"], "level": "INFO", "propagate": False},
        "opengem.serving": {"handlers": ["err"], "level": "INFO", "propagate": False},
        "uvicorn": {"handlers": ["err"], "level": "WARNING", "propagate": False},
    },
}


@dataclass(frozen=True, kw_only=True)
class Service:
    """All that a process of the service must know.

    Attributes:
        package: Folder of a package, or a link to one; another that is put in its place is taken over.
        host: Address to bind to.
        port: TCP port; 0 for any that is free.
        workers: Processes. Each loads the package.
        threads: Threads of torch in each process.
        service: What each process takes on.
        limits: How large a request may be.
        token: Bearer token; none if empty.
    """

    package: Path
    host: str
    port: int
    workers: int
    threads: int
    service: ServiceLimits
    limits: Limits
    token: str = ""

    def describe(self) -> dict[str, Any]:
        """Return processes, threads of each and cores, as `/health` says them."""
        return {"workers": self.workers, "threads": self.threads, "cores": available_cores()}


def serve(
    package: str | Path,
    host: str = LOOPBACK,
    port: int = 8080,
    *,
    workers: int = 1,
    threads: int = 1,
    waiting: int = ServiceLimits.waiting,
    token: str = "",
    limits: Limits | None = None,
) -> None:
    """Load a package and serve it until stopped.

    A process works on one request after another; one worker a core uses a machine fully. `workers x threads` is no
    more than the cores unless it is asked for. A line of JSON for each request goes to standard output, everything else
    to standard error.

    Args:
        package: Folder of a package, or a link to one; another that is put in its place is taken over.
        host: Address to bind to. Beyond loopback give a token, and put something that speaks TLS in front.
        port: TCP port, 0 to 65535; 0 for any that is free.
        workers: Processes, 1 or more.
        threads: Threads of torch in each process; more than 1 helps large models alone.
        waiting: Requests of each process that wait while one is worked on; more are refused.
        token: Bearer token that callers must give, 16 characters or more; none if empty.
        limits: How large requests may be.

    Raises:
        BackendUnavailable: FastAPI or uvicorn is not installed, or the package was made for another machine.
        ConfigError: An argument does not fit, or the address cannot be bound.
        DataError: The package is damaged.
        CheckFailed: The package does not answer its sample.
    """
    try:
        import uvicorn
        from uvicorn.supervisors import Multiprocess

        from opengem.serving.connections import GuardedConnection
    except ImportError as error:
        raise BackendUnavailable(
            'the server needs uvicorn. Install it with: pip install "opengem[serve]"'
        ) from error
    for name, value, least in (("workers", workers, 1), ("threads", threads, 1), ("waiting", waiting, 0)):
        if value < least:
            raise ConfigError(f"{name} must be {least} or more. Received: {value}")
    if token and (len(token) < _SHORTEST_TOKEN or not token.isascii()):
        raise ConfigError(
            f"the token must be {_SHORTEST_TOKEN} ASCII characters or more. Received: {len(token)}"
        )
    service = Service(
        package=Path(package),
        host=host,
        port=port,
        workers=workers,
        threads=threads,
        service=ServiceLimits(waiting=waiting),
        limits=limits or Limits(),
        token=token,
    )
    torch.set_num_threads(threads)
    live = LivePackage(service.package, service.limits)  # before the address is taken: nothing starts half
    app: Any = functools.partial(worker_app, service)
    if workers == 1:
        app = functools.partial(_app, service, live)
    with bound(host, port) as listening:
        config = uvicorn.Config(
            app,
            factory=True,
            workers=workers,
            http=GuardedConnection,
            ws="none",
            access_log=False,
            server_header=False,
            log_config=_LOGS,
            timeout_graceful_shutdown=30,
        )
        print(_start_line(service, live, listening.getsockname()[1]), file=sys.stderr, flush=True)
        if workers == 1:
            uvicorn.Server(config).run(sockets=[listening])
        else:
            del live
            Multiprocess(config, sockets=[listening]).run()


def worker_app(service: Service) -> Any:
    """Return the application of one of several processes."""
    torch.set_num_threads(service.threads)
    return _app(service, LivePackage(service.package, service.limits))


def _app(service: Service, live: LivePackage) -> Any:
    # a request takes Python's lock once an operation; from a thread that loads a package it shall get it back soon
    sys.setswitchinterval(_SWITCH_SECONDS)
    live.watch()
    return create_app(live, service.service, service.token, service.describe())


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        ConfigError: The address is not here, or taken.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, number)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"host and port must be a free address of this machine. Received: {host}:{port}, {error}"
        ) from None
    return listening


def available_cores() -> int:
    """Return the cores that this process may use: those of its affinity, and no more than its group's share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def _start_line(service: Service, live: LivePackage, port: int) -> str:
    package = live.predictor.package
    name = package.facts["card"].get("name", "")
    where = f"[{service.host}]" if ":" in service.host else service.host
    line = (
        f"serving {name or service.package} ({package.fingerprint}) at http://{where}:{port}: "
        f"workers {service.workers} x threads {service.threads} on {available_cores()} cores, "
        f"{1 + service.service.waiting} requests a worker at once; "
        f"{'bearer token' if service.token else 'no token'}"
    )
    if not service.token and not _is_loopback(service.host):
        line += ". Anyone who reaches this address can ask: set OPENGEM_TOKEN"
    return line


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
