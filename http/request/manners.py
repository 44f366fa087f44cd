"""What HTTP promises of every resource: HEAD, OPTIONS with a true `Allow`, 304, and no query parameter without a meaning."""

import re
from functools import cache
from typing import Any

from litestar import Litestar, Request
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter
from litestar.types import Message, Receive, Send

from ...domain.rejected import Invalid
from .problems import with_head

#: No route takes it, so that whoever asks the router for it is told what is taken instead.
NO_METHOD: Any = "TRACE"
SCHEMA, SCHEMA_PAGE = "/schema", "/schema/page"
#: Providers of a sign-in add parameters of their own there.
OPEN_TO_MORE = "/auth/"
_TAG = re.compile(rb'(?:W/)?("[^"]*")')


class UnknownParameter(Invalid):
    """The query has a parameter that means nothing here."""

    code = "unknown_parameter"


class PoliteApp(Litestar):
    """The API, which answers HEAD and OPTIONS on each of its paths, and 304 to whoever has the answer already."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if scope["path"].rstrip("/") == SCHEMA and _wants_page(scope["headers"]):
            # In a browser the description is a page; programs ask for nothing, or for JSON.
            scope = {**scope, "path": SCHEMA_PAGE, "raw_path": SCHEMA_PAGE.encode()}
        if scope["method"] == "OPTIONS" and (methods := self._methods(scope["path"])):
            await _tell_methods(methods, send)
        elif scope["method"] in ("GET", "HEAD"):
            await self._look(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def _methods(self, path: str) -> str | None:
        """Return the methods that a path takes; None: there is no such path."""
        try:
            self.asgi_router.handle_routing(path=path.rstrip("/") or "/", method=NO_METHOD)
        except MethodNotAllowedException as told:
            return with_head((told.headers or {})["allow"])
        except HTTPException:
            return None
        return None

    async def _look(self, scope: Any, receive: Receive, send: Send) -> None:
        known = next((value for name, value in scope["headers"] if name == b"if-none-match"), None)
        if scope["method"] == "HEAD":
            answer = _Shortened(send, known, is_head=True)
            as_get: Any = {**scope, "method": "GET"}
            await super().__call__(as_get, answer.receive(receive), answer)
        elif known is not None:
            await super().__call__(scope, receive, _Shortened(send, known, is_head=False))
        else:
            await super().__call__(scope, receive, send)


class _Shortened:
    """What is sent in the place of a whole answer: its head alone, or that the client has it already."""

    def __init__(self, send: Send, known: bytes | None, *, is_head: bool) -> None:
        self._send = send
        self._known = known
        self._is_head = is_head
        self._is_over = False

    async def __call__(self, message: Message) -> None:
        """Send what is left of a message."""
        if self._is_over:
            return
        if message["type"] != "http.response.start":
            await self._send(message)
            return
        is_known = message["status"] == 200 and self._knows(message)
        if is_known:
            message = {**message, "status": 304, "headers": [h for h in message["headers"] if not _of_body(h[0])]}
        await self._send(message)
        if self._is_head or is_known:
            self._is_over = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def receive(self, receive: Receive) -> Receive:
        """Return what the app hears: that its client has gone once it has what it asked for, so that a feed ends."""

        async def heard() -> Any:
            return {"type": "http.disconnect"} if self._is_over else await receive()

        return heard

    def _knows(self, message: Any) -> bool:
        if self._known is None:
            return False
        tag = next((value for name, value in message["headers"] if name.lower() == b"etag"), None)
        # A weak comparison, as RFC 9110 has it for this header.
        return tag is not None and (self._known.strip() == b"*" or tag.removeprefix(b"W/") in _TAG.findall(self._known))


def _wants_page(headers: Any) -> bool:
    accepted = next((value for name, value in headers if name == b"accept"), b"")
    return b"text/html" in accepted and b"json" not in accepted


def _of_body(header: bytes) -> bool:
    return header.lower() in (b"content-length", b"content-type")


async def _tell_methods(methods: str, send: Send) -> None:
    headers = [(b"allow", methods.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse_unknown_parameters(request: Request[Any, Any, Any]) -> None:
    """Return if the route knows every parameter of the query. Raises UnknownParameter."""
    path = request.scope["path"]
    handler = request.route_handler
    if (
        not request.scope["query_string"]
        or handler.opt.get("exclude_from_auth")
        or path.startswith((SCHEMA, OPEN_TO_MORE))
    ):
        return
    known = _parameters_of(handler)
    for name in request.query_params:
        if name not in known:
            takes = f"It takes: {', '.join(sorted(known))}." if known else "It takes none."
            raise UnknownParameter(f"{name[:100]!r} is no parameter of {request.method} {path}. {takes}")


@cache
def _parameters_of(handler: BaseRouteHandler) -> frozenset[str]:
    fields = handler.parsed_fn_signature.parameters.items()
    kinds = ((name, field.kwarg_definition) for name, field in fields)
    return frozenset(getattr(kind, "name", None) or name for name, kind in kinds if isinstance(kind, QueryParameter))
