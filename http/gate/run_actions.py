"""The single-run forms of a decision about assembled work: review, commit and request-changes on a coordinator run."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Meta, UnsetType

from ...application.commands.review_assembly import RepositoryDirty, review_assembly
from ...application.commands.steer import request_changes
from ...application.ports.log import EventLog
from ...domain.event import Draft, Fact
from ...domain.facts.assembly import MergeFailed
from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import Invalid, Rejected
from ...domain.steering.gate_signals import NoReviewPending
from ...projections import run_detail
from ...projections.run_detail import RunDetail
from ..request.decided import telling_the_winner
from ..request.etags import IfMatch, check
from ..request.idempotency import Asking, Asks, Command
from ..request.one_run import coordinator, settled
from ..request.problems import refusals
from .approved_again import approve_once
from .assembly import ReviewRequest, changes, decision

MAX_COMMENT_CHARACTERS = 8_000
PAGE = 500


class ChangesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the assembled work lacks."""

    comment: Annotated[str, Meta(min_length=1, max_length=MAX_COMMENT_CHARACTERS)]


class DecidedBody(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where the run is after the decision: merged, merging (still under way), merge_failed, declined or
    revision_requested. `merge_result` is `merged:{commit}` or `conflict:{reason}`.
    """

    run_id: str
    status: str
    merge_result: str | None = None
    conflicting_files: Sequence[str] | UnsetType = UNSET
    #: The new branch that the work went onto, where it was not merged into the originating one.
    delivered_to: str | UnsetType = UNSET


class MergeWasBlocked(RepositoryDirty):
    """The originating branch could not be moved, or the new one not be made, so nothing was: the gate is open again."""


class BaseHasMoved(Rejected):
    """
    The originating branch has meanwhile changed some of the same files, or has let go of changes that a merge would bring
    back. Nothing was merged: the work goes to the gates once more, on top of what the branch holds now. Review that.
    """

    code = "base_moved"


DECIDED = {200: ResponseSpec(DecidedBody, description="Where the run is now", generate_examples=False)}
REFUSALS = refusals(403, 404, 409, 412, 413, 422)


@post("/api/runs/{run_id:str}/review", status_code=200, sync_to_thread=True, responses=DECIDED | REFUSALS)
def review(
    run_id: FromPath[str], data: JSONBody[ReviewRequest], asking: Asks, if_match: IfMatch = None
) -> Response[bytes]:
    """Approve, decline or send back the assembled work. What was decided the same way before is answered again."""
    if data.approved and data.request_changes:
        raise Invalid("Send either `approved` or `request_changes`, not both.")
    return _decide(asking, run_id, data, if_match, repeats=True)


@post("/api/runs/{run_id:str}/commit", status_code=200, sync_to_thread=True, responses=DECIDED | REFUSALS)
def commit(run_id: FromPath[str], asking: Asks, if_match: IfMatch = None) -> Response[bytes]:
    """Approve the assembled work, which merges it."""
    return _decide(asking, run_id, ReviewRequest(approved=True), if_match, repeats=False)


@post(
    "/api/runs/{run_id:str}/request-changes",
    status_code=202,
    sync_to_thread=True,
    responses={202: ResponseSpec(RunDetail, description="The run", generate_examples=False)} | REFUSALS,
)
def send_back(
    run_id: FromPath[str], data: JSONBody[ChangesRequest], asking: Asks, if_match: IfMatch = None
) -> Response[bytes]:
    """Ask for changes of the assembled work; every contributor goes on, in the same worktree and on the same branch."""
    wanted = ReviewRequest(approved=False, request_changes=True, feedback=data.comment)
    response = _store(asking, run_id, wanted, if_match, repeats=False, status=202)
    services, root = asking.services, coordinator(asking, run_id).root
    position = int(response.headers["Steersman-Position"])
    services.views.wait(run_detail.VIEW.name, position, services.settings.min_position_seconds)
    row = services.views.get(run_detail.VIEW.name, root)
    if row is not None:
        # The view may be a moment behind; the status is what this was about.
        shown = run_detail.shown(run_detail.VIEW.decode(row))
        response.content = msgspec.json.encode(msgspec.structs.replace(shown, status=services.runs.run(root).status))
    return response


def _decide(
    asking: Asking, run_id: str, data: ReviewRequest, if_match: str | None, *, repeats: bool
) -> Response[bytes]:
    response = _store(asking, run_id, data, if_match, repeats=repeats, status=200)
    root = coordinator(asking, run_id).root
    run = settled(asking, root, lambda run: run.ended or not run.merging)
    response.content = msgspec.json.encode(_outcome(asking.services.log, run, data))
    return response


def _store(
    asking: Asking, run_id: str, data: ReviewRequest, if_match: str | None, *, repeats: bool, status: int
) -> Response[bytes]:
    """On return the decision is on the log, now or (if it may be repeated) from before."""
    root, services = coordinator(asking, run_id).root, asking.services

    def carry_out(command: Command, tree: str | None = None) -> Sequence[Fact]:
        # Whoever approves the same tree again has met their precondition when they did so first.
        wanted = if_match if tree is None else None

        def told(run: CoordinatorRun, _: Sequence[Draft]) -> Any:
            check(wanted, run)
            return command.tell(status, {"run_id": root, "status": run.status})

        run = services.runs.run(root)
        check(wanted, run)
        if repeats and _was_decided(run, data):
            told(run, ())
            return ()
        store = (command.by, services.runs, services.repositories, told)
        try:
            if data.request_changes:
                return request_changes(root, changes(data, asking), *store)
            return review_assembly(root, decision(data, asking, tree), *store)
        except NoReviewPending as refused:
            now = services.runs.run(root)
            raise NoReviewPending(
                f"Run is in status '{now.status}' and cannot be reviewed.", run_status=now.status
            ) from refused
        except RepositoryDirty as dirty:
            raise RepositoryDirty(str(dirty), run_status=services.runs.run(root).status, **dirty.details) from dirty

    with telling_the_winner(services, root):
        return approve_once(asking, root, carry_out) if data.approved else asking.once(carry_out)


def _was_decided(run: CoordinatorRun, data: ReviewRequest) -> bool:
    if data.request_changes:
        return False
    return run.status == ("completed" if data.approved else "declined")


def _outcome(log: EventLog, run: CoordinatorRun, data: ReviewRequest) -> DecidedBody:
    if data.request_changes:
        return DecidedBody(run_id=run.run_id, status="revision_requested")
    if not data.approved:
        return DecidedBody(run_id=run.run_id, status="declined")
    if run.status == "completed":
        merged = run.assembly.merge.new if run.assembly and run.assembly.merge else ""
        is_new = run.delivery.mode != "merge"
        return DecidedBody(
            run_id=run.run_id,
            status="merged",
            merge_result=f"merged:{merged}",
            delivered_to=run.delivery.branch_of(run.run_id) if is_new else UNSET,
        )
    if run.status == "merge_failed":
        failed = _failure(log, run)
        return DecidedBody(
            run_id=run.run_id,
            status="merge_failed",
            merge_result=f"conflict:{failed.reason}",
            conflicting_files=[str(path) for path in failed.conflicting_files],
        )
    if run.moved is not None and run.moved.reason != "merge_conflict" and not run.merging:
        raise BaseHasMoved(run_status=run.status, files=[str(path) for path in run.moved.files])
    if run.status == "awaiting_review":
        reason = run.plan.status_reason if run.plan else None
        raise MergeWasBlocked(reason=reason, run_status=run.status)
    return DecidedBody(run_id=run.run_id, status="merging" if run.merging else run.status)


def _failure(log: EventLog, run: CoordinatorRun) -> MergeFailed:
    """Return why the newest merge failed."""
    failures: list[MergeFailed] = []
    after = 0
    while page := log.read_stream(run.stream, after, PAGE):  # ends: a run's own stream holds no output
        failures += [fact.event for fact in page if isinstance(fact.event, MergeFailed)]
        after = page[-1].version
    return failures[-1]
