"""The HTTP application: POST /rank, GET /health, GET /card."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opengem.errors import BackendUnavailable
from opengem.serving.fields import OtherSchemaError, RequestError
from opengem.serving.gate import Gate
from opengem.serving.live import LivePackage
from opengem.serving.predictor import Predictor

if TYPE_CHECKING:
    from fastapi import FastAPI

_WINDOW = 0.25  # seconds
_FULL = 0.9


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """What one process of the service takes on, and for how long.

    Attributes:
        waiting: Requests that wait while one is worked on; more are refused with 503. Under a load that leaves no time
            to spare nobody waits.
        wait_seconds: Longest time that a request waits.
        body_bytes: Size of a request.
        body_seconds: Time in which the body must arrive.
        total_seconds: Time of a request in all, until the last byte of the answer is taken.
    """

    waiting: int = 8
    wait_seconds: float = 2.0
    body_bytes: int = 4_000_000
    body_seconds: float = 10.0
    total_seconds: float = 60.0


def create_app(
    live: LivePackage,
    limits: ServiceLimits | None = None,
    token: str = "",
    about: dict[str, Any] | None = None,
) -> "FastAPI":
    """Return the HTTP application of a package.

    Every error is `{"error": {"field", "message"}}`: 400 no JSON; 401 no token; 408 the body came too slowly; 409
    another schema; 413 body too large; 422 a field breaks a rule; 503 with `Retry-After` when all places are taken or
    the wait was too long; 500 with `id`, under which the log says why. No value that was sent is repeated.

    Args:
        live: The package; limits on the contents of requests are its own.
        limits: What the service takes on at once.
        token: Bearer token that is asked for; none if empty.
        about: What `/health` shall say of the service beside its limits.

    Raises:
        BackendUnavailable: FastAPI is not installed.
    """
    try:
        from fastapi import FastAPI, Request
        from fastapi.responses import JSONResponse, Response
        from starlette.requests import ClientDisconnect
    except ImportError as error:
        raise BackendUnavailable(
            'the server needs FastAPI. Install it with: pip install "opengem[serve]"'
        ) from error
    limits = limits or ServiceLimits()
    desk = Desk(limits)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        live.close()

    app = FastAPI(title="OpenGEM", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    def refusal(status: int, message: str, field: str = "", **headers: str) -> JSONResponse:
        body = {"error": {"field": field, "message": message}}
        return JSONResponse(body, status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def _no_such_route(request: Request, _: Exception) -> JSONResponse:
        return refusal(404, "must be POST /rank, GET /health or GET /card.")

    @app.get("/health")
    async def _health(request: Request) -> JSONResponse:
        if not request.state.trusted:
            return JSONResponse({"status": "ok"})
        return JSONResponse(health(live, limits, about or {}))

    @app.get("/card")
    async def _card() -> JSONResponse:
        return JSONResponse(live.predictor.package.facts["card"])

    @app.post("/rank")
    async def _rank(request: Request) -> Response:
        note: dict[str, Any] = request.state.note
        try:
            body = await _body(request, limits)
            predictor = live.predictor  # the one that answers all of this request
            note["package"] = predictor.package.fingerprint
            answer, note["ads"] = await desk.answer(predictor, body)
            return Response(answer, media_type="application/json")
        except _RefusedError as refused:
            return refusal(
                refused.status, str(refused), "request" if refused.status < 500 else "", **refused.headers
            )
        except ClientDisconnect:
            return refusal(499, "was cut off by its sender.", "request")  # for the log; nobody reads it
        except OtherSchemaError as broken:
            return refusal(409, broken.rule, broken.field)
        except RequestError as broken:
            return refusal(422, broken.rule, broken.field)

    gate: dict[str, Any] = {"token": token, "seconds": limits.total_seconds, "is_busy": desk.is_busy}
    app.add_middleware(Gate, **gate)  # type: ignore[arg-type]
    return app


def health(live: LivePackage, limits: ServiceLimits, about: dict[str, Any]) -> dict[str, Any]:
    """Return what a caller must know to use the package, and what the service takes on."""
    package = live.predictor.package
    listed = ("schema", "tasks", "surfaces", "history", "role", "kind", "torch", "opengem", "made")
    asked = live.predictor.limits
    return {
        "status": "ok",
        "package": package.fingerprint,
        **{name: package.facts[name] for name in listed},
        "parity": {name: v for name, v in package.facts["parity"].items() if name != "cases"},
        "refused_package": live.problem or None,
        "service": {**about, **vars(limits)},
        "limits": vars(asked),
    }


class Desk:
    """Where requests are worked on: one after another, in the thread that also reads and writes.

    Reading a request and the small steps of a small model are Python for the most part, of which one process can run
    one thread at a time; more threads would only take turns, and make every answer late. Between two requests, what
    came in meanwhile is read, and refused at once where there is no place for it.

    A queue evens out requests that come close together. When more come than can be answered it only makes every answer
    late, so it is shut while the process has no time to spare.

    Args:
        limits: How many requests may wait, and how long.
    """

    def __init__(self, limits: ServiceLimits):
        self._limits = limits
        self._inside = 0
        self._turn = asyncio.Lock()
        self._load = Load()

    def is_busy(self) -> bool:
        """Return whether there is no place for one more request."""
        return self._inside > (0 if self._load.is_full() else self._limits.waiting)

    async def answer(self, predictor: Predictor, body: bytes) -> tuple[bytes, int]:
        """Return the answer to a body as JSON, and the number of its ads.

        Raises:
            _RefusedError: All places are taken, the wait was too long, or the body is no JSON.
            RequestError: The request breaks a rule.
        """
        if self.is_busy():
            raise _RefusedError(503, "is busy. Try again.", Retry_After="1")
        self._inside += 1
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await self._turn.acquire()
            try:
                for _ in range(3):  # rounds of the event loop: to take bytes, to read a request, to refuse it
                    await asyncio.sleep(0)
                return _answer(predictor, body)
            finally:
                self._turn.release()
        except TimeoutError:
            raise _RefusedError(503, "took too long. Try again.", Retry_After="1") from None
        finally:
            self._inside -= 1


class Load:
    """Whether this process has time to spare: its CPU time over the last quarter of a second or more.

    It has one busy thread, so that a share of 1 is all that it can have; above 0.9 counts as full.
    """

    def __init__(self) -> None:
        self._full = False
        self._began, self._used = time.monotonic(), time.process_time()

    def is_full(self) -> bool:
        """Return whether there was no time to spare lately."""
        now, used = time.monotonic(), time.process_time()
        if now - self._began >= _WINDOW:
            self._full = used - self._used > _FULL * (now - self._began)
            self._began, self._used = now, used
        return self._full


class _RefusedError(Exception):
    """The service does not take a request on."""

    def __init__(self, status: int, message: str, **headers: str):
        super().__init__(message)
        self.status, self.headers = status, headers


async def _body(request: Any, limits: ServiceLimits) -> bytes:
    """Return the body; one that is too long is read on for a while, so that its sender can read the refusal."""
    longest = limits.body_bytes
    declared = request.headers.get("content-length", "0")
    body, size, ended = bytearray(), 0, False
    if declared.isdecimal() and len(declared) < 16 and int(declared) <= 8 * longest:
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > 8 * longest:
                        break
                    if size <= longest:
                        body += chunk
                ended = size <= 8 * longest
        except TimeoutError:
            raise _RefusedError(
                408, f"must arrive within {limits.body_seconds:g} s.", Connection="close"
            ) from None
    if size > longest or not ended:
        closing = {} if ended else {"Connection": "close"}
        raise _RefusedError(413, f"must be at most {longest} bytes.", **closing)
    return bytes(body)


def _answer(predictor: Predictor, body: bytes) -> tuple[bytes, int]:
    answer = predictor.rank(_parse(body))
    return json.dumps(answer, allow_nan=False, ensure_ascii=False).encode(), len(answer["ads"])


def _parse(body: bytes) -> Any:
    try:
        # NaN and Infinity are no JSON, but are read here so that the field that holds one can be named
        return json.loads(body, object_pairs_hook=_unique)
    except RequestError:
        raise
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError):
        raise _RefusedError(400, "must be JSON in UTF-8.") from None
    except ValueError:  # a number with too many digits
        raise _RefusedError(400, "must hold numbers of at most 4,300 digits.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise RequestError("request", "must hold each field of an object once.")
    return result
