"""Change a project's team: retire a member, give them another role or charter, and see what they have done."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import Response, delete, get, patch, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from ...domain.projects import project_changes
from ...domain.projects.project_changes import member_of
from ...projections import children_view, run_list
from ..request.idempotency import Asks
from ..request.problems import NO_CONTENT, refusals
from ..request.reading import Reads
from .project_changes import REFUSALS, changed, told
from .team import MemberBody, shown

#: How many of a project's newest runs are looked through for what a member has done.
MAX_RUNS = 100


class ReassignRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Another role for a member."""

    new_role_id: Annotated[str, Meta(max_length=200, examples=["product-manager"])]
    custom_role_title: Annotated[str, Meta(max_length=200)] | None = None


class CharterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a member is to be."""

    content: Annotated[str, Meta(min_length=1, max_length=65_536)]


class CharterBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is."""

    member_name: str
    content: str


class WorkedOn(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run that a member has worked on."""

    run_id: str
    coordinator_run_id: str
    subtask_id: int
    status: str
    started_at: str


@delete(
    "/api/projects/{project_id:str}/team/members/{name:str}",
    status_code=204,
    sync_to_thread=True,
    responses=NO_CONTENT | REFUSALS,
)
def retire_member(project_id: FromPath[str], name: FromPath[str], asking: Asks) -> Response[None]:
    """Retire a member: they are given no more work, and stay on the team's list."""
    return changed(asking, project_id, lambda project: project_changes.retire(project, name))


@patch(
    "/api/projects/{project_id:str}/team/members/{name:str}",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(MemberBody, description="The member", generate_examples=False)} | REFUSALS,
)
def reassign_member(
    project_id: FromPath[str], name: FromPath[str], data: JSONBody[ReassignRequest], asking: Asks
) -> Response[bytes]:
    """Give a member another role, and the charter that goes with it."""
    response = told(
        asking,
        project_id,
        lambda project: project_changes.reassign(project, name, data.new_role_id, data.custom_role_title),
        None,
    )
    project = asking.access.project(asking.principal, project_id)
    response.content = msgspec.json.encode(shown(member_of(project, name)))
    return response


@get(
    "/api/projects/{project_id:str}/team/members/{name:str}/charter",
    sync_to_thread=True,
    responses=refusals(404),
)
def show_charter(project_id: FromPath[str], name: FromPath[str], reading: Reads) -> CharterBody:
    """Return a member's charter: the one that was written, or the one of their role."""
    reading.await_log()
    project = reading.access.project(reading.principal, project_id)
    return CharterBody(member_name=name, content=project_changes.charter(project, name))


@put(
    "/api/projects/{project_id:str}/team/members/{name:str}/charter",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(CharterBody, description="The charter", generate_examples=False)} | REFUSALS,
)
def put_charter(
    project_id: FromPath[str], name: FromPath[str], data: JSONBody[CharterRequest], asking: Asks
) -> Response[bytes]:
    """Replace a member's charter."""
    response = told(
        asking, project_id, lambda project: project_changes.replace_charter(project, name, data.content), None
    )
    # Words can be erased, so none are kept with the answer. A repetition has the same body.
    response.content = msgspec.json.encode(CharterBody(member_name=name, content=data.content))
    return response


@get(
    "/api/projects/{project_id:str}/team/members/{name:str}/history",
    sync_to_thread=True,
    responses=refusals(404),
)
def show_member_history(project_id: FromPath[str], name: FromPath[str], reading: Reads) -> Sequence[WorkedOn]:
    """List what a member has worked on in the project's newest runs, the newest first."""
    member_of(reading.access.project(reading.principal, project_id), name)
    return [
        WorkedOn(
            run_id=child.child_run_id,
            coordinator_run_id=run.execution_id,
            subtask_id=child.subtask_id,
            status=child.child_run_status,
            started_at=run.started_at,
        )
        for _, run in reading.rows(run_list.VIEW, project_id, limit=MAX_RUNS)
        for _, child in reading.rows(children_view.VIEW, run.execution_id)
        if child.assigned_agent == name
    ]
