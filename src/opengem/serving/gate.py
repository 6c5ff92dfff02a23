"""The gate of the service: who may come in, for how long, and one line of log for each request."""

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

from opengem.serving.fields import is_plain

ACCESS = logging.getLogger("opengem.access")
_LOG = logging.getLogger("opengem.serving")
ROUTES = ("/rank", "/health", "/card")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI application around another: bearer token, time limit, request id, access log.

    What the inner application finds in `scope["state"]`: `request_id`, `trusted` (whether the token was given, true
    where none is asked for) and `note`, a dictionary that goes into the line of log. The line is JSON: `time`, `id`,
    `path`, `status`, `ms`, and `ads` and `package` of an answer; nothing else that was sent is in it.

    Args:
        app: The application.
        token: Bearer token that every route but `/health` asks for; none if empty.
        seconds: Longest time of a request, from its head to the last byte of the answer.
        is_busy: Whether there is no place for a request to `/rank`; it is then refused here, which costs least.
    """

    def __init__(
        self, app: App, token: str = "", seconds: float = 60.0, is_busy: Callable[[], bool] = lambda: False
    ):
        self._app, self._token, self._seconds, self._is_busy = app, token, seconds, is_busy

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = dict(scope["headers"])
        sent = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = sent if is_plain(sent) else secrets.token_hex(8)
        note: dict[str, Any] = {"ads": None, "package": None}
        trusted = self._trusts(headers.get(b"authorization", b""))
        scope["state"] = {
            **scope.get("state", {}),
            "request_id": request_id,
            "trusted": trusted,
            "note": note,
        }
        status: list[int] = []

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
                message = {
                    **message,
                    "headers": [*message["headers"], (b"x-request-id", request_id.encode())],
                }
            await send(message)

        try:
            async with asyncio.timeout(self._seconds):
                if not trusted and scope["path"] != "/health":
                    await refuse(noting, 401, "must carry the bearer token.", www_authenticate="Bearer")
                elif scope["path"] == "/rank" and self._is_busy():
                    await refuse(noting, 503, "is busy. Try again.", retry_after="1")
                else:
                    await self._app(scope, receive, noting)
        except TimeoutError:
            if not status:
                await refuse(noting, 503, "took too long. Try again.", retry_after="1", connection="close")
        except Exception:
            _LOG.exception("request %s failed", request_id)
            if not status:
                await refuse(noting, 500, "failed inside. The log says why under the id.", id=request_id)
        finally:
            path = scope["path"] if scope["path"] in ROUTES else "other"
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "id": request_id,
                "path": path,
                "status": status[0] if status else None,
                "ms": round((time.perf_counter() - began) * 1e3, 2),
                **note,
            }
            ACCESS.info(json.dumps(line))

    def _trusts(self, header: bytes) -> bool:
        if not self._token:
            return True
        scheme, _, given = header.partition(b" ")
        # both, so that the time says nothing of either
        return hmac.compare_digest(given.strip(), self._token.encode()) & (scheme.lower() == b"bearer")


async def refuse(send: Send, status: int, message: str, id: str = "", **headers: str) -> None:
    """Send an error: `{"error": {"field", "message"}}`, with the `id` of the request if it is given."""
    error = {"field": "", "message": message} | ({"id": id} if id else {})
    body = json.dumps({"error": error}).encode()
    listed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    listed += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
