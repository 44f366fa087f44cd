"""Change a project: its name, its defaults, its people; or delete it. Only its owners may."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, delete, get, patch, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from ...application.commands.change_project import change_project
from ...application.commands.delete_project import end_runs
from ...domain.event import Draft, Fact
from ...domain.projects import project_changes
from ...domain.projects.project import Project
from ...domain.projects.project_changes import ProviderSettings
from ...domain.projects.project_facts import ProjectRole
from ...domain.rejected import Invalid, ProjectNotFound, Rejected
from ...projections import run_list
from ..request.field_types import ModelId
from ..request.idempotency import Asking, Asks, Command
from ..request.one_run import settled
from ..request.problems import NO_CONTENT, refusals
from ..request.reading import MAX_PAGE, Reads

REFUSALS = refusals(403, 404, 409, 413, 422)


class RenameRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Another name for the project."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]


class ProviderSettingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Every default of the project; what is left out, or null, goes back to the installation's."""

    default_provider: Literal["github-copilot", "byok", "microsoft-foundry"] | None = None
    default_model_github_copilot: ModelId | None = None
    default_model_microsoft_foundry: ModelId | None = None
    blueprint_generation_model: ModelId | None = None
    workflow_generation_model: ModelId | None = None
    outcome_spec_generation_model: ModelId | None = None


class RoleRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a user may do in the project."""

    role: ProjectRole


class UserBody(msgspec.Struct, frozen=True, kw_only=True):
    """A user, and what they may do in the project."""

    user: str
    role: ProjectRole


class ConfirmationRequired(Invalid):
    """This deletes the project and cancels its runs. Send the request with `?confirm=true`."""

    code = "confirmation_required"


class SubmissionGone(Rejected):
    """Runs are not submitted one by one any more. POST /api/projects/{id}/orchestrations starts an orchestration."""

    code = "gone"
    status = 410


@patch("/api/projects/{project_id:str}", status_code=204, sync_to_thread=True, responses=NO_CONTENT | REFUSALS)
def rename_project(project_id: FromPath[str], data: JSONBody[RenameRequest], asking: Asks) -> Response[None]:
    """Give the project another name."""
    return changed(asking, project_id, lambda project: project_changes.rename(project, data.name), own=True)


@put(
    "/api/projects/{project_id:str}/provider-settings",
    status_code=204,
    sync_to_thread=True,
    responses=NO_CONTENT | REFUSALS,
)
def put_provider_settings(
    project_id: FromPath[str], data: JSONBody[ProviderSettingsRequest], asking: Asks
) -> Response[None]:
    """Replace the project's provider and model defaults."""
    settings = ProviderSettings(**msgspec.structs.asdict(data))
    return changed(asking, project_id, lambda project: project_changes.replace_settings(project, settings), own=True)


@delete("/api/projects/{project_id:str}", status_code=204, sync_to_thread=True, responses=NO_CONTENT | REFUSALS)
def delete_project(
    request: Request[Any, Any, Any],
    project_id: FromPath[str],
    asking: Asks,
    confirm: Annotated[str | None, QueryParameter(max_length=10, description="`true`, or nothing is deleted.")] = None,
) -> Response[None]:
    """Delete the project, its runs, which are cancelled first, and every word of them. Directory and git history stay."""
    if confirm != "true" or len(request.query_params.getall("confirm", [])) != 1:
        asking.access.project(asking.principal, project_id, own=True)
        raise ConfirmationRequired
    response = changed(asking, project_id, project_changes.start_deletion, own=True)
    services = asking.services
    # If we crash here, or do not wait long enough, the sweep goes on with it.
    view = run_list.VIEW
    seen = services.views.wait(view.name, services.log.head(), services.settings.min_position_seconds)
    roots = [view.decode(row.body).execution_id for row in services.views.list(view.name, project_id, limit=MAX_PAGE)]
    if seen and len(roots) < MAX_PAGE and not end_runs(project_id, roots, services.runs):
        for root in roots:
            settled(asking, root, lambda run: run.ended)
        end_runs(project_id, roots, services.runs)
    response.set_header("Steersman-Position", str(services.log.head()))
    return response


@post("/api/projects/{project_id:str}/runs", status_code=410, sync_to_thread=True, responses=REFUSALS | refusals(410))
def submit_run(project_id: FromPath[str], asking: Asks) -> None:
    """Say where runs are started now."""
    asking.access.project(asking.principal, project_id)
    raise SubmissionGone


@get("/api/projects/{project_id:str}/members", sync_to_thread=True, responses=refusals(403, 404))
def list_users(project_id: FromPath[str], reading: Reads) -> list[UserBody]:
    """List who has which role in the project, by name."""
    reading.await_log()
    project = reading.access.project(reading.principal, project_id)
    return [UserBody(user=user, role=role) for user, role in sorted(project.roles.items())]


@put(
    "/api/projects/{project_id:str}/members/{user:str}",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(UserBody, description="The user", generate_examples=False)} | REFUSALS,
)
def put_user(
    project_id: FromPath[str], user: FromPath[str], data: JSONBody[RoleRequest], asking: Asks
) -> Response[bytes]:
    """Give a user a role in the project, in place of the one they have."""
    return told(
        asking,
        project_id,
        lambda project: project_changes.grant(project, user, data.role),
        UserBody(user=user, role=data.role),
        own=True,
    )


@delete(
    "/api/projects/{project_id:str}/members/{user:str}",
    status_code=204,
    sync_to_thread=True,
    responses=NO_CONTENT | REFUSALS,
)
def remove_user(project_id: FromPath[str], user: FromPath[str], asking: Asks) -> Response[None]:
    """Take a user's role in the project away. Its last owner stays."""
    return changed(asking, project_id, lambda project: project_changes.revoke(project, user), own=True)


def changed(
    asking: Asking, project_id: str, decision: Callable[[Project], Sequence[Draft]], *, own: bool = False
) -> Response[None]:
    """Store what is decided about a project; there is nothing to tell but that it is stored."""
    position = told(asking, project_id, decision, None, own=own, status=204).headers["Steersman-Position"]
    return Response(None, status_code=204, headers={"Steersman-Position": position})


def told(
    asking: Asking,
    project_id: str,
    decision: Callable[[Project], Sequence[Draft]],
    body: object,
    *,
    own: bool = False,
    status: int = 200,
) -> Response[bytes]:
    """Store what is decided about a project, and answer with *body*. Raises ProjectNotFound, Forbidden."""
    asking.access.project(asking.principal, project_id, change=True, own=own)

    def carry_out(command: Command) -> Sequence[Fact]:
        answer = command.tell(status, body)

        def decided(project: Project) -> Sequence[Draft]:
            if project.state == "deleted":
                raise ProjectNotFound
            return decision(project)

        return change_project(project_id, decided, command.by, asking.services.log, command.clock, answer)

    return asking.once(carry_out)
