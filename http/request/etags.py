"""`ETag` on runs, and `If-Match` on decisions about them: the number of the last fact that is not mere output."""

import re
from typing import Annotated, TypeAlias

from litestar.params import HeaderParameter

from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import Invalid, Rejected

_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_LIST = re.compile(rf"\s*{_TAG}(?:\s*,\s*{_TAG})*\s*")

IfMatch: TypeAlias = Annotated[
    str | None,
    HeaderParameter(name="If-Match", description="The ETag of the run that the decision is about.", required=False),
]


class PreconditionFailed(Rejected):
    """The run is no longer as you saw it. Nothing was stored: GET it again, and decide about what it is now."""

    code = "precondition_failed"
    status = 412


def etag(root_sequence: int) -> str:
    """Return the entity tag of a run whose last non-output fact has this number."""
    return f'"{root_sequence}"'


def check(if_match: str | None, run: CoordinatorRun) -> None:
    """Return if the run is as the client saw it. Raises PreconditionFailed, Invalid."""
    if if_match is None or if_match.strip() == "*":
        return
    if not _LIST.fullmatch(if_match):
        raise Invalid('`If-Match` must be `*` or entity tags in double quotes, such as "12".')
    # A weak tag never matches: RFC 9110 wants the strong comparison here.
    actual = etag(run.root_sequence)
    if actual not in re.findall(_TAG, if_match):
        raise PreconditionFailed(expected=if_match.strip(), actual=actual)
