"""A request that the end of its process cuts short: its client is told to send it again, not that something is wrong."""

import asyncio
from typing import Any

from litestar import Request
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from ...domain.rejected import Rejected
from .problems import answer


class CutShort(Rejected):
    """This process ended before the answer was there. Send it again with its Idempotency-Key: it is carried out once."""

    code = "cut_short"
    status = 503
    retryable = True


def told_when_cut_short(app: ASGIApp) -> ASGIApp:
    """Return the app, answering 503 where a request is cancelled that was not answered yet."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await app(scope, receive, sending)
        except asyncio.CancelledError:
            if has_begun or scope["type"] != "http":
                raise
            await _refuse(Request(scope), send)

    return handle


async def _refuse(request: Request[Any, Any, Any], send: Send) -> None:
    refusal = CutShort()
    said = answer(request, refusal.status, refusal.code, str(refusal), retryable=refusal.retryable)
    headers = {**said.headers, "content-type": str(said.media_type), "content-length": str(len(said.content))}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": said.content, "more_body": False})
