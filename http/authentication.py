"""Who is asking: a bearer token says it, or the request ends here."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from anyio import CapacityLimiter, to_thread
from litestar.connection import ASGIConnection
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.types import ASGIApp

from ..application.caller import is_reserved
from .given import Principal, Services
from .problems import Unauthorized

#: Put this into a route's `opt` to answer everybody.
PUBLIC: dict[str, Any] = {"exclude_from_auth": True}
#: The description of the API is public too.
SCHEMA = "^/schema"
#: The ASGI extension by which the server hears that a good token was shown on a connection.
KNOWN = "steersman.known"
#: How many tokens are looked up at once; others wait their turn.
MAX_LOOKUPS = 8


class BearerAuthentication(AbstractAuthenticationMiddleware):
    """Lets no request through that does not carry an issued token."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        super().__init__(app, exclude=SCHEMA)
        self._tokens = services.tokens
        self._limiter = CapacityLimiter(MAX_LOOKUPS)

    async def authenticate_request(self, connection: ASGIConnection[Any, Any, Any, Any]) -> AuthenticationResult:
        """Return the principal of the request's token. Raises Unauthorized."""
        raw = _bearer(connection)
        if raw is None:
            raise Unauthorized
        authenticate = partial(self._tokens.authenticate, raw)
        found = await to_thread.run_sync(authenticate, limiter=self._limiter)
        # A token that was issued before its name was reserved must not decide under it.
        if found is None or is_reserved(found[0]):
            raise Unauthorized
        user, scope = found
        _tell(connection)
        # Who stays for long, as a feed does, asks again whether the token still holds; nobody else is handed it.
        return AuthenticationResult(user=Principal(user=user, scope=scope), auth=lambda: authenticate() is not None)


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
