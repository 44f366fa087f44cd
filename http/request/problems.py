"""Every way the API says no: one shape, RFC 9457 problem details with our wire words, whatever went wrong."""

from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus
from logging import getLogger
from typing import Annotated, Any, TypeAlias, cast
from urllib.parse import quote

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from msgspec import Meta

from ...application.ports.log import Forged, LogRolledBack, LogTampered, LogUnavailable, Undecodable
from ...domain.rejected import Rejected
from .allowed import allowed
from .findings import Findings

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1
#: Where the app keeps what was found wrong with the log.
FINDINGS = "findings"
_LOGGER = getLogger(__name__)

#: The wire words of what litestar itself refuses.
_WORDS = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_media_type",
}
_MESSAGES = {
    404: "There is no such route. GET /schema describes the API.",
    405: "This route does not take that method. The Allow header names those it takes.",
    413: "The body is too large. Send at most 1 MiB.",
}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused. Some problems have further members, such as `expected` and `actual`."""

    type: Annotated[str, Meta(description="Stable URI of the kind of problem.")]
    title: str
    status: int
    detail: str
    instance: Annotated[str, Meta(description="The path that was asked for.")]
    error: Annotated[str, Meta(description="The wire word of the kind of problem; programs go by it.")]
    message: Annotated[str, Meta(description="The same as `detail`.")]
    retryable: Annotated[bool, Meta(description="Whether the same request may succeed later, unchanged.")]


class Unauthorized(Rejected):
    """Send `Authorization: Bearer <token>` with a token from `steersman token issue`."""

    code = "unauthorized"
    status = 401


class Unavailable(Rejected):
    """The service cannot answer this now. Send the request again."""

    code = "unavailable"
    status = 503
    retryable = True


AnyRequest: TypeAlias = Request[Any, Any, Any]


def answer(
    request: AnyRequest,
    status: int,
    error: str,
    message: str,
    *,
    retryable: bool = False,
    details: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    """Return the problem as a response; what can be retried says when."""
    problem = Problem(
        type=f"urn:steersman:problem:{error}",
        title=error.replace("_", " ").capitalize(),
        status=status,
        detail=message,
        instance=quote(request.scope["path"], errors="replace"),
        error=error,
        message=message,
        retryable=retryable,
    )
    body = {**(details or {}), **msgspec.to_builtins(problem)}
    sent = dict(headers or {})
    if retryable and status in (409, 429, 503):
        sent.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    if status == 401:
        sent["WWW-Authenticate"] = 'Bearer realm="steersman"'
    return Response(msgspec.json.encode(body), status_code=status, media_type=MEDIA_TYPE, headers=sent)


def _rejected(request: AnyRequest, refusal: Rejected) -> Response[bytes]:
    return answer(
        request,
        refusal.status,
        refusal.code,
        str(refusal),
        retryable=refusal.retryable,
        details=refusal.details,
    )


def with_head(allow: str) -> str:
    """Return an `Allow` header with HEAD wherever there is GET, in order."""
    methods = {method.strip() for method in allow.split(",")} | {"OPTIONS"}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _with_head(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {name: with_head(value) if name.lower() == "allow" else value for name, value in (headers or {}).items()}


def _log_unavailable(request: AnyRequest, error: LogUnavailable) -> Response[bytes]:
    # The error may name hosts and files; the client only needs to know what to do.
    _LOGGER.warning("the log cannot be reached: %s", error)
    message = "The event log cannot be reached now. Send the request again, with the same Idempotency-Key."
    return answer(request, 503, "log_unavailable", message, retryable=True)


def _log_rolled_back(request: AnyRequest, error: LogRolledBack) -> Response[bytes]:
    _LOGGER.error("nothing is stored: %s", error)
    message = (
        "The store was put back to an earlier state, so nothing is stored. If that was meant: steersman audit "
        "accept-restore, then start the service again."
    )
    return answer(request, 503, "log_rolled_back", message)


def _log_tampered(request: AnyRequest, error: LogTampered) -> Response[bytes]:
    _LOGGER.error("the store is not what was signed: %s", error)
    message = "What the store holds is not what was signed; see /health. Find out where with: steersman audit verify"
    return answer(request, 503, "log_tampered", message)


def _undecodable(request: AnyRequest, error: Undecodable) -> Response[bytes]:
    findings: Findings | None = request.app.state.get(FINDINGS)
    if findings is not None:
        findings.met(error)
    message = "A stored fact of this run cannot be read by this release; see /health."
    if isinstance(error, Forged):
        message = "What the store holds of this run is not what was written there; see /health."
    details = {"position": error.position, "run": error.run}
    return answer(request, 503, "run_quarantined", message, retryable=True, details=details)


def _of_litestar(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    if error.status_code >= 500:
        return _unhandled(request, error)
    status = error.status_code
    word = _WORDS.get(status, HTTPStatus(status).phrase.lower().replace(" ", "_"))
    return answer(
        request, status, word, _MESSAGES.get(status) or _what_to_do(request, error), headers=_with_head(error.headers)
    )


def _what_to_do(request: AnyRequest, error: HTTPException) -> str:
    extra: Any = error.extra
    faults = [_fault(request, cast("Mapping[str, Any]", e)) for e in extra if isinstance(e, dict)] if extra else []
    return "The request is not valid: " + ("; ".join(faults) or error.detail)


def _fault(request: AnyRequest, extra: Mapping[str, Any]) -> str:
    source, key, fault = extra.get("source"), extra.get("key"), str(extra.get("message"))
    source = source.value if isinstance(source, Enum) else source
    where = " ".join(str(part) for part in (source, key) if part)
    fault += allowed(request.route_handler, source, key, fault)
    return f"{where}: {fault}" if where else fault


def _too_deep(request: AnyRequest, error: RecursionError) -> Response[bytes]:
    if "deserializing" not in str(error):
        return _unhandled(request, error)
    return answer(request, 400, "invalid_request", "The body is nested too deeply. Send what GET /schema describes.")


def _unhandled(request: AnyRequest, error: Exception) -> Response[bytes]:
    _LOGGER.error("a request failed", exc_info=error)
    return answer(request, 500, "internal_error", "Something went wrong on our side; the log of the service says what.")


HANDLERS: dict[Any, Any] = {
    Rejected: _rejected,
    LogUnavailable: _log_unavailable,
    LogRolledBack: _log_rolled_back,
    LogTampered: _log_tampered,
    Undecodable: _undecodable,
    HTTPException: _of_litestar,
    RecursionError: _too_deep,
    Exception: _unhandled,
}


#: The answer of a command that has nothing to tell.
NO_CONTENT = {204: ResponseSpec(None, description="Done", generate_examples=False)}


def refusals(*statuses: int) -> dict[int, ResponseSpec]:
    """Return the refusals of a route, for its description; what every route may answer is added."""
    return {
        status: ResponseSpec(
            Problem,
            description=HTTPStatus(status).phrase,
            media_type=cast("Any", MEDIA_TYPE),
            generate_examples=False,
        )
        for status in sorted({400, 401, 503, *statuses})
    }
