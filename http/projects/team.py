"""A project's team, and the roles that a team can be made of."""

from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from ...application.commands.register_project import join_team
from ...application.commands.start_orchestration import UnknownModel
from ...domain.event import Draft
from ...domain.projects.project import AddMember, MemberAdded
from ...domain.projects.project_changes import member_of
from ...domain.projects.team import ROLES, Member, Role, next_name
from ...domain.rejected import NotFound
from ..request.field_types import ModelId
from ..request.idempotency import Asks, Command
from ..request.problems import refusals
from ..request.reading import Reads


class MemberBody(msgspec.Struct, frozen=True, kw_only=True):
    """Someone on a team."""

    name: str
    role_id: str
    role_title: str
    #: Teams live in the log, so no file in the repository holds a charter.
    charter_path: str | None = None
    status: str
    default_model: str | None
    is_named: bool
    is_built_in: bool = False
    charter_created_at: str
    charter_updated_at: str


class TeamBody(msgspec.Struct, frozen=True, kw_only=True):
    """A project's team."""

    project_name: str | None
    universe: str | None = None
    layout: str = "absent"
    migration_available: bool = False
    members: list[MemberBody]


class MemberRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Someone to take on the team."""

    role_id: Annotated[str, Meta(max_length=200, examples=["software-engineer"])]
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    custom_role_title: Annotated[str, Meta(max_length=200)] | None = None
    model_id: ModelId | None = None


class TeamNotFound(NotFound):
    """This project has no team yet. POST /api/projects/{id}/team/members adds the first member."""

    code = "team_not_found"


@get("/api/catalog/roles", sync_to_thread=True, responses=refusals())
def list_roles(reading: Reads) -> list[Role]:
    """List the roles that a member can have."""
    reading.await_log()
    return list(ROLES.values())


@get("/api/projects/{project_id:str}/team", sync_to_thread=True, responses=refusals(404))
def show_team(project_id: FromPath[str], reading: Reads) -> TeamBody:
    """Return the team. A project without one answers 404."""
    reading.await_log()
    project = reading.access.project(reading.principal, project_id)
    if not project.members:
        raise TeamNotFound
    return TeamBody(project_name=project.name.value, members=[shown(member) for member in project.members])


@post(
    "/api/projects/{project_id:str}/team/members",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(MemberBody, description="The member", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422),
)
def add_member(project_id: FromPath[str], data: JSONBody[MemberRequest], asking: Asks) -> Response[bytes]:
    """Take someone on the team, under the given name or the next free one of their role."""
    services = asking.services
    asking.access.project(asking.principal, project_id, change=True)
    if data.model_id is not None and services.agents.resolve(data.model_id) is None:
        raise UnknownModel(f"No agent answers to {data.model_id!r}. Write `agent` or `agent/model`.")
    wanted = AddMember(
        role_id=data.role_id, name=data.name, custom_role_title=data.custom_role_title, model_id=data.model_id
    )

    def carry_out(command: Command) -> Any:
        return join_team(
            project_id,
            wanted,
            command.by,
            services.log,
            command.clock,
            # What somebody wrote is not kept with the answer: it is filled in whenever it is given.
            lambda draft: command.tell(200, {"name": _joined(draft)}),
        )

    response = asking.once(carry_out)
    name = msgspec.json.decode(response.content)["name"]
    response.content = msgspec.json.encode(shown(member_of(asking.access.known(project_id), name)))
    return response


def _joined(draft: Draft) -> str:
    event = draft.event
    assert isinstance(event, MemberAdded)
    return event.name


def shown(member: Member) -> MemberBody:
    return MemberBody(
        name=member.name,
        role_id=member.role_id,
        role_title=member.role_title,
        status="active" if member.active else "retired",
        default_model=member.model_id,
        is_named=not member.name.startswith(next_name(member.role_id, set())),
        charter_created_at=member.since,
        charter_updated_at=member.changed_at or member.since,
    )
