"""Who is asking: a bearer token says it, or the request ends here."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from anyio import CapacityLimiter, to_thread
from litestar.connection import ASGIConnection
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.types import ASGIApp

from ...application.writer.caller import is_reserved
from .given import Principal, Scope, Services
from .problems import Unauthorized

#: Put this into a route's `opt` to answer everybody.
PUBLIC: dict[str, Any] = {"exclude_from_auth": True}
#: The description of the API is public too.
SCHEMA = "^/schema"
#: The ASGI extension by which the server hears that a good token was shown on a connection.
KNOWN = "steersman.known"
#: How many tokens are looked up at once; others wait their turn.
MAX_LOOKUPS = 8
#: For how long a token that was good is taken without another look: a revocation counts within a second, everywhere.
GOOD_SECONDS = 0.5
#: How many good tokens are kept in mind.
MAX_GOOD = 4_096


class BearerAuthentication(AbstractAuthenticationMiddleware):
    """Lets no request through that does not carry an issued token."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        super().__init__(app, exclude=SCHEMA)
        self._tokens = services.tokens
        self._limiter = CapacityLimiter(MAX_LOOKUPS)
        #: Whose they are, and until when, on the monotonic clock.
        self._good: dict[str, tuple[Principal, float]] = {}
        self._looks: dict[str, asyncio.Future[Principal | None]] = {}

    async def authenticate_request(self, connection: ASGIConnection[Any, Any, Any, Any]) -> AuthenticationResult:
        """Return the principal of the request's token. Raises Unauthorized."""
        raw = _bearer(connection)
        if raw is None:
            raise Unauthorized
        authenticate = partial(self._tokens.authenticate, raw)
        principal, until = self._good.get(raw, (None, 0.0))
        if principal is None or until < time.monotonic():
            principal = await self._looked_up(raw, authenticate)
        _tell(connection)
        # Who stays for long, as a feed does, asks again whether the token still holds; nobody else is handed it.
        return AuthenticationResult(user=principal, auth=lambda: authenticate() is not None)

    async def _looked_up(self, raw: str, authenticate: Callable[[], tuple[str, Scope] | None]) -> Principal:
        """Return whose the token is, from one look for all who show it at this moment. Raises Unauthorized."""
        look = self._looks.get(raw)
        if look is None:
            look = self._looks[raw] = asyncio.ensure_future(self._look_up(raw, authenticate))
            look.add_done_callback(lambda _: self._looks.pop(raw, None))
        principal = await asyncio.shield(look)  # whoever leaves takes the answer from nobody else
        if principal is None:
            raise Unauthorized
        return principal

    async def _look_up(self, raw: str, authenticate: Callable[[], tuple[str, Scope] | None]) -> Principal | None:
        self._good.pop(raw, None)
        until = time.monotonic() + GOOD_SECONDS
        found = await to_thread.run_sync(authenticate, limiter=self._limiter)
        # A token that was issued before its name was reserved must not decide under it.
        if found is None or is_reserved(found[0]):
            return None
        user, scope = found
        principal = Principal(user=user, scope=scope)
        if len(self._good) >= MAX_GOOD:
            self._good.clear()
        self._good[raw] = principal, until
        return principal


def principal_of(connection: ASGIConnection[Any, Any, Any, Any], services: Services) -> Principal | None:
    """Return who asks, on a route that answers everybody; None: nobody whom we know. Takes a look at the store."""
    raw = _bearer(connection)
    found = services.tokens.authenticate(raw) if raw is not None else None
    return None if found is None or is_reserved(found[0]) else Principal(user=found[0], scope=found[1])


def _bearer(connection: ASGIConnection[Any, Any, Any, Any]) -> str | None:
    scheme, _, raw = connection.headers.get("authorization", "").partition(" ")
    return raw.strip() or None if scheme.lower() == "bearer" else None


def _tell(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Tell whoever guards the connection, if anybody does, that it is no stranger's."""
    scope = cast("Mapping[str, Any]", connection.scope)
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    if KNOWN in extensions:
        extensions[KNOWN]["call"]()
