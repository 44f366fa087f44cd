"""What a GET may ask for: rows of views, as new as the client wants them."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.params import HeaderParameter, QueryParameter, SkipValidation

from ...application.ports.outside import ViewRow
from ...domain.rejected import Invalid
from ...projections.view import View
from .access import Access
from .given import Given, Principal, Services
from .problems import Unavailable

Row = TypeVar("Row", bound=msgspec.Struct)

DEFAULT_PAGE = 100
MAX_PAGE = 1_000
NUMBER = r"^[0-9]{1,16}$"

Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE, description="How many to list at most.")]
Before: TypeAlias = Annotated[
    int | None, QueryParameter(ge=0, le=2**53, description="List what comes after this cursor, from a `next` link.")
]


class NotReached(Unavailable):
    """The views have not reached `Steersman-Min-Position` yet. Send the request again."""

    code = "position_not_reached"


class Reading:
    """One request that reads: who asks, what they may see, and how new it has to be."""

    def __init__(self, services: Services, access: Access, principal: Principal, min_position: int) -> None:
        self.services = services
        self.access = access
        self.principal = principal
        self._min_position = min_position

    def row(self, view: View[Row], key: str) -> Row | None:
        """Return a view's row, at least as new as the client asked for. Raises NotReached."""
        self._await(view)
        body = self.services.views.get(view.name, key)
        if body is None:
            # Whoever asks has just seen in the log that there may be something: let the view come that far.
            self.services.views.wait(view.name, self.services.log.head(), self.services.settings.min_position_seconds)
            body = self.services.views.get(view.name, key)
        return None if body is None else view.decode(body)

    def rows(
        self, view: View[Row], group: str, *, before: int | None = None, limit: int = MAX_PAGE
    ) -> Sequence[tuple[int, Row]]:
        """Return the rows of a group and their places, the highest first, those below *before*. Raises NotReached."""
        self._await(view)
        found: Sequence[ViewRow] = self.services.views.list(view.name, group, before=before, limit=limit)
        return [(row.order, view.decode(row.body)) for row in found]

    def every(self, view: View[Row], group: str, *, before: int | None = None, page: int = MAX_PAGE) -> Iterator[Row]:
        """
        Give every row of a group, the highest first, those below *before*. It reads a *page* at a time, as far as rows
        are asked for. Raises NotReached.
        """
        while found := self.rows(view, group, before=before, limit=page):
            yield from (row for _, row in found)
            if len(found) < page:
                return
            before = found[-1][0]

    def await_log(self) -> None:
        """Return if the log itself is as new as the client asked for. Raises NotReached."""
        if self._min_position > self.services.log.head():
            raise NotReached(expected=self._min_position, actual=self.services.log.head())

    def _await(self, view: View[Any]) -> None:
        if self._min_position == 0:
            return
        # A position that no fact has yet is not worth a thread that waits for it.
        self.await_log()
        views = self.services.views
        if not views.wait(view.name, self._min_position, self.services.settings.min_position_seconds):
            raise NotReached(expected=self._min_position, actual=views.position(view.name))


def provide_reading(
    request: Request[Principal, Any, Any],
    services: Given,
    access: NamedDependency[SkipValidation[Access]],
    min_position: Annotated[
        str | None,
        HeaderParameter(
            name="Steersman-Min-Position",
            description="Answer with what is at least as new as this position, from a command's Steersman-Position.",
            pattern=NUMBER,
        ),
    ] = None,
) -> Reading:
    """Return what the handler of a GET needs."""
    return Reading(services, access, request.user, int(min_position or 0))


Reads: TypeAlias = NamedDependency[SkipValidation[Reading]]


def only_once(request: Request[Any, Any, Any], *names: str) -> None:
    """Refuse a query that gives one of these parameters more than once. Raises Invalid."""
    for name in names:
        if len(request.query_params.getall(name, [])) > 1:
            raise Invalid(f"Give the query parameter `{name}` at most once.")


def link_to(request: Request[Any, Any, Any], **cursor: int) -> dict[str, str]:
    """Return the RFC 8288 link to the same list from another cursor on."""
    asked = {**request.query_params.dict(), **cursor}
    return {"Link": f'<{request.url.path}?{urlencode(asked, doseq=True)}>; rel="next"'}
