"""Why a run failed, as every view of a run shows it."""

import msgspec

from ..domain.facts.child_run import RunFailed


class Failure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a run failed: in the last words of its agent, and in a word."""

    message: str | None
    error_code: str
    retryable: bool


def failure_of(event: RunFailed) -> Failure:
    """Return what a failure says."""
    return Failure(message=event.message.value, error_code=event.error_code, retryable=event.retryable)
