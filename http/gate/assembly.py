"""The assembled work of a coordinator run: its files, and the human gate over them."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from ...application.commands.review_assembly import review_assembly
from ...application.commands.steer import request_changes
from ...domain.event import Draft, Fact
from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import Invalid
from ...domain.runs.review import ReviewAssembly
from ...domain.steering.gate_signals import RequestChanges
from ..request.decided import telling_the_winner
from ..request.etags import IfMatch, check
from ..request.idempotency import Asking, Asks, Command, directive_id
from ..request.one_run import UseCoordinator
from ..request.problems import refusals
from ..request.repository_paths import MAX_PATH_CHARACTERS
from .approved_again import approve_once

MAX_TARGET_FILES = 1_000


DEFERRED = "The decision is on the log; the process that drives the run takes it from there."


class ReviewRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A decision about the assembled work."""

    approved: bool
    request_changes: bool = False
    feedback: Annotated[str, Meta(description="At most 16384 bytes.")] | None = None
    target_files: (
        Annotated[list[Annotated[str, Meta(max_length=MAX_PATH_CHARACTERS)]], Meta(max_length=MAX_TARGET_FILES)] | None
    ) = None
    tree_hash: Annotated[str, Meta(max_length=128, description="The tree that was reviewed.")] | None = None


class ReviewedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The decision is stored. It is deferred where another process drives the run, and takes it from the log."""

    runId: str
    accepted: bool = True
    deferred: bool = False
    message: str | msgspec.UnsetType = msgspec.UNSET


@post(
    "/api/runs/{run_id:str}/assembly/review",
    status_code=200,
    sync_to_thread=True,
    responses={
        200: ResponseSpec(ReviewedBody, description="The decision is stored", generate_examples=False),
        202: ResponseSpec(
            ReviewedBody, description="It is stored; another process acts on it", generate_examples=False
        ),
    }
    | refusals(403, 404, 409, 412, 413, 422),
)
def review_run(
    run_id: FromPath[str], data: JSONBody[ReviewRequest], asking: Asks, if_match: IfMatch = None
) -> Response[bytes]:
    """Approve the assembled work, which merges it, or decline it. The first decision wins."""
    place = asking.access.run(asking.principal, run_id, change=True)
    if not place.is_coordinator:
        raise UseCoordinator(coordinator_run_id=place.root)
    if data.approved and data.request_changes:
        raise Invalid("Send either `approved` or `request_changes`, not both.")

    services = asking.services

    def carry_out(command: Command, tree: str | None = None) -> Sequence[Fact]:
        # Whoever approves the same tree again has met their precondition when they did so first.
        wanted = if_match if tree is None else None

        def told(run: CoordinatorRun, _: Sequence[Draft]) -> Any:
            # Here, under the fold that is decided on, so that nothing can come between the look and the append.
            check(wanted, run)
            if services.tenure.holds(place.run_id):
                return command.tell(200, ReviewedBody(runId=place.run_id))
            return command.tell(202, ReviewedBody(runId=place.run_id, accepted=False, deferred=True, message=DEFERRED))

        check(wanted, services.runs.run(place.run_id))
        store = (command.by, services.runs, services.repositories, told)
        if data.request_changes:
            return request_changes(place.run_id, changes(data, asking), *store)
        return review_assembly(place.run_id, decision(data, asking, tree), *store)

    with telling_the_winner(services, place.run_id):
        return approve_once(asking, place.run_id, carry_out) if data.approved else asking.once(carry_out)


def decision(data: ReviewRequest, asking: Asking, tree: str | None) -> ReviewAssembly:
    """Return the decision that is asked for: about this tree, if one is given, else about the one that the body names."""
    return ReviewAssembly(
        approved=data.approved,
        reviewer=asking.principal.user,
        feedback=data.feedback or "",
        tree_hash=tree or data.tree_hash,
    )


def changes(data: ReviewRequest, asking: Asking) -> RequestChanges:
    """Return the request for changes that is asked for."""
    return RequestChanges(
        directive_id=directive_id(),
        feedback=data.feedback or "",
        reviewer=asking.principal.user,
        target_files=tuple(data.target_files or ()),
        tree_hash=data.tree_hash,
    )
