"""Projects: repositories on this machine that are registered with the service."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from ...application.commands.register_project import register_project
from ...application.commands.start_orchestration import resolved
from ...application.ports.agents import Agents
from ...application.writer.caller import Answer
from ...domain.event import Draft
from ...domain.facts.gates import DEFAULT_BUILD_SECONDS, GateSpec
from ...domain.projects.project import CreateProject, ProjectCreated
from ...domain.rejected import Invalid, ProjectNotFound
from ...projections import project_view, run_list
from ...projections.delivery import delivery_view
from ...projections.project_view import ProjectView
from ...projections.run_list import RunSummary
from ...projections.usage import budget_view
from ..request.budgets import BudgetRequest, budget_of
from ..request.deliveries import DeliveryRequest, delivery_of
from ..request.field_types import ModelId
from ..request.idempotency import Asking, Asks, Command
from ..request.problems import refusals
from ..request.reading import DEFAULT_PAGE, MAX_PAGE, Before, Limit, Reads, only_once
from ..request.what_waits import waiting_kinds


class BuildTest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The command that assembled work must pass before a person is asked, run in a worktree of its own."""

    command: Annotated[Sequence[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1)]
    timeout_seconds: Annotated[int, Meta(ge=1, le=86_400)] = DEFAULT_BUILD_SECONDS


class ProjectRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A repository to be registered. Its checked-out branch becomes the project's default branch."""

    name: Annotated[str, Meta(min_length=1, max_length=200, examples=["my-project"])]
    working_directory: Annotated[str, Meta(min_length=1, max_length=4096, examples=["/srv/repositories/my-project"])]
    origin: Literal["blank", "github"] = "blank"
    default_provider: Literal["github-copilot", "byok", "microsoft-foundry"] | None = None
    default_model_github_copilot: ModelId | None = None
    default_model_microsoft_foundry: ModelId | None = None
    reviewers: Annotated[
        dict[Literal["rai", "rubberduck"], ModelId] | None,
        Meta(description="The agents, by model id, that review assembled work before a person is asked."),
    ] = None
    build_test: BuildTest | None = None
    budget: Annotated[
        BudgetRequest | None, Meta(description="What the agents of all its runs may use together; null: no limit.")
    ] = None
    deliver: Annotated[DeliveryRequest | None, Meta(description="Where the work of its runs goes that do not say.")] = (
        None
    )
    #: These belong to features that this service does not have; only null is accepted.
    repository_selection_code: str | None = None
    blueprint_id: str | None = None
    blueprint: dict[str, Any] | None = None
    generated_workflow_yaml: str | None = None


_REGISTERING = Lock()


class OriginUnsupported(Invalid):
    """Only `origin` `blank` is supported: clone the repository yourself and register its directory."""

    code = "origin_unsupported"


@post(
    "/api/projects",
    sync_to_thread=True,
    responses={201: ResponseSpec(ProjectView, description="The project", generate_examples=False)}
    | refusals(403, 409, 413, 422),
)
def create_project(data: JSONBody[ProjectRequest], asking: Asks) -> Response[bytes]:
    """Register a repository that exists on this machine."""
    asking.access.operator(asking.principal)
    _refuse_unsupported(data)
    wanted = CreateProject(
        project_id=str(uuid4()),
        name=data.name,
        origin=data.origin,
        working_directory=data.working_directory,
        default_branch="",
        owner=asking.principal.user,
        default_provider=data.default_provider,
        default_model_github_copilot=data.default_model_github_copilot,
        default_model_microsoft_foundry=data.default_model_microsoft_foundry,
        gates=_gates(data, asking.services.agents),
        budget=budget_of(data.budget),
        delivery=delivery_of(data.deliver),
    )

    def carry_out(command: Command) -> Any:
        def told(draft: Draft) -> Answer:
            return command.tell(201, _created(draft, command))

        services = asking.services
        # One after the other, so that the second of two at once finds the first.
        with _REGISTERING:
            place = (command.by, services.log, command.clock, services.repositories)
            return register_project(wanted, *place, told, lambda name, path: _known_as(asking, name, path))

    response = asking.once(carry_out, "/api/projects/{project_id}")
    response.content = msgspec.json.encode(
        _worded(asking, msgspec.json.decode(response.content, type=ProjectView), data)
    )
    return response


def _known_as(asking: Asking, name: str, path: str) -> str | None:
    """Return the project in which whoever asks has this repository under this name already."""
    views, settings = asking.services.views, asking.services.settings
    for view in (project_view.VIEW, project_view.ROLES_VIEW):
        views.wait(view.name, asking.services.log.head(), settings.min_position_seconds)
    before: int | None = None
    group = project_view.user_group(asking.principal.user)
    while page := views.list(project_view.ROLES_VIEW.name, group, before=before, limit=MAX_PAGE):
        for found in page:
            body = views.get(project_view.VIEW.name, project_view.ROLES_VIEW.decode(found.body).project_id)
            project = project_view.VIEW.decode(body) if body is not None else None
            if (
                project is not None
                and project.owner == asking.principal.user
                and (project.name, project.working_directory) == (name, path)
            ):
                return project.project_id
        before = page[-1].order
    return None


def _gates(data: ProjectRequest, agents: Agents) -> tuple[GateSpec, ...]:
    gates = [GateSpec(kind=kind, model_id=resolved(model, agents)) for kind, model in (data.reviewers or {}).items()]
    if data.build_test is not None:
        build = data.build_test
        gates.append(GateSpec(kind="build-test", command=tuple(build.command), timeout_seconds=build.timeout_seconds))
    return tuple(gates)


def _refuse_unsupported(data: ProjectRequest) -> None:
    if data.origin != "blank" or data.repository_selection_code is not None:
        raise OriginUnsupported
    for name in ("blueprint_id", "blueprint", "generated_workflow_yaml"):
        if getattr(data, name) is not None:
            raise Invalid(f"`{name}` is not supported. Leave it out, or send null.")


def _created(draft: Draft, command: Command) -> ProjectView:
    """Return the answer as it is kept: words can be erased, so there are none in it, and each answer is given its own."""
    event = draft.event
    assert isinstance(event, ProjectCreated)
    at = command.clock.now().isoformat()
    return ProjectView(
        project_id=event.project_id,
        name=None,
        origin=event.origin,
        working_directory=None,
        default_branch=event.default_branch,
        owner=event.owner,
        default_provider=event.default_provider,
        default_model_github_copilot=event.default_model_github_copilot,
        default_model_microsoft_foundry=event.default_model_microsoft_foundry,
        budget=budget_view(event.budget) or msgspec.UNSET,
        deliver=delivery_view(event.delivery) if event.delivery else msgspec.UNSET,
        created_at=at,
        updated_at=at,
    )


def _worded(asking: Asking, kept: ProjectView, data: ProjectRequest) -> ProjectView:
    """Return the answer with its words, also when it is given again. Raises ProjectNotFound: it was deleted since."""
    project = asking.access.known(kept.project_id)
    # A repetition has the same body, so the name is the one that was given then.
    return msgspec.structs.replace(kept, name=data.name, working_directory=project.working_directory.value)


@get("/api/projects", sync_to_thread=True, responses=refusals())
def list_projects(
    request: Request[Any, Any, Any], reading: Reads, limit: Limit = DEFAULT_PAGE, before: Before = None
) -> Response[list[ProjectView]]:
    """List the projects in which the caller has a role, the newest first."""
    only_once(request, "limit", "before")
    group = project_view.user_group(reading.principal.user)
    roles = reading.rows(project_view.ROLES_VIEW, group, before=before, limit=limit)
    found = [reading.row(project_view.VIEW, role.project_id) for _, role in roles]
    body = [_shown(row) for row in found if row is not None]
    return Response(body, headers=next_link(request, limit, [place for place, _ in roles]))


@get("/api/projects/{project_id:str}", sync_to_thread=True, responses=refusals(404))
def show_project(project_id: FromPath[str], reading: Reads) -> ProjectView:
    """Return one project. Somebody else's looks as if it were not there."""
    reading.access.project(reading.principal, project_id)
    row = reading.row(project_view.VIEW, project_id)
    if row is None:
        raise ProjectNotFound
    return _shown(row)


@get("/api/projects/{project_id:str}/runs", sync_to_thread=True, responses=refusals(404))
def list_runs(
    request: Request[Any, Any, Any],
    project_id: FromPath[str],
    reading: Reads,
    limit: Limit = DEFAULT_PAGE,
    before: Before = None,
) -> Response[list[RunSummary]]:
    """List a project's coordinator runs, the newest first. Their children are listed by each of them."""
    only_once(request, "limit", "before")
    reading.access.project(reading.principal, project_id)
    rows = reading.rows(run_list.VIEW, project_id, before=before, limit=limit)
    waiting = waiting_kinds(reading, project_id)
    body = [run_list.shown(row, waiting.get(row.execution_id, ())) for _, row in rows]
    return Response(body, headers=next_link(request, limit, [place for place, _ in rows]))


def next_link(request: Request[Any, Any, Any], limit: int, places: list[int]) -> dict[str, str]:
    """Return the RFC 8288 link to the next page, if this one is full."""
    if len(places) < limit:
        return {}
    return {"Link": f'<{request.url.path}?limit={limit}&before={places[-1]}>; rel="next"'}


def _shown(row: ProjectView) -> ProjectView:
    return project_view.shown(row, available=Path(row.working_directory or "").is_dir())
