"""The API: every route, what handlers may ask for, and the one place where a refusal becomes a status."""

from anyio import CapacityLimiter
from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.middleware import DefineMiddleware

from . import openapi, openapi_page
from .feeds import events, stream
from .files import assembly_files, files, project_workspace
from .gate import approvals, assembly, outcome_spec, run_actions
from .projects import project_changes, project_use, projects, sandbox_policy, team, team_changes, webhooks
from .request.access import Access
from .request.authentication import BearerAuthentication
from .request.cut_short import told_when_cut_short
from .request.given import Services
from .request.idempotency import asking_over
from .request.manners import PoliteApp, refuse_unknown_parameters
from .request.problems import FINDINGS, HANDLERS
from .request.reading import provide_reading
from .runs import budget, explain, graph, orchestrations, run_life, run_lists, runs, turns
from .service import diagnostics, health, metrics, overview, receipts
from .service.metrics import Metrics
from .steering import fleet, steering, worker_steering
from .waiting import items

ROUTES = (
    health.banner,
    health.health,
    health.api_health,
    health.server_info,
    metrics.metrics_page,
    projects.create_project,
    projects.list_projects,
    projects.show_project,
    projects.list_runs,
    team.list_roles,
    team.show_team,
    team.add_member,
    project_changes.rename_project,
    project_changes.put_provider_settings,
    project_use.put_project_budget,
    project_use.put_delivery,
    project_changes.delete_project,
    project_changes.submit_run,
    project_changes.list_users,
    project_changes.put_user,
    project_changes.remove_user,
    team_changes.retire_member,
    team_changes.reassign_member,
    team_changes.show_charter,
    team_changes.put_charter,
    team_changes.show_member_history,
    webhooks.create_webhook,
    webhooks.list_webhooks,
    webhooks.show_webhook,
    webhooks.enable_webhook,
    webhooks.disable_webhook,
    webhooks.test_webhook,
    webhooks.replace_webhook_secret,
    webhooks.remove_webhook,
    sandbox_policy.show_sandbox_policy,
    sandbox_policy.put_sandbox_policy,
    orchestrations.start_run,
    outcome_spec.show_outcome_spec,
    outcome_spec.confirm,
    outcome_spec.revise,
    run_lists.list_all_runs,
    runs.show_run,
    budget.put_budget,
    turns.list_turns,
    runs.show_work_plan,
    runs.list_children,
    explain.explain_run,
    items.list_waiting,
    graph.show_graph,
    overview.show_token_breakdown,
    overview.show_overview,
    overview.show_dashboard,
    diagnostics.show_diagnostics,
    diagnostics.show_heartbeat,
    diagnostics.show_project_diagnostics,
    project_workspace.list_workspace_refs,
    project_workspace.list_workspace,
    project_workspace.show_workspace_file,
    assembly_files.list_files,
    assembly_files.show_file,
    assembly.review_run,
    run_actions.review,
    run_actions.commit,
    run_actions.send_back,
    run_life.cancel,
    run_life.archive,
    run_life.retry,
    run_life.delete_one,
    files.show_workspace,
    files.list_changed_files,
    files.show_changed_file,
    files.show_assembly,
    files.show_content,
    steering.steer,
    steering.list_directives,
    steering.show_directive,
    steering.resolve,
    approvals.approve_tool,
    approvals.deny_tool,
    approvals.approve_command,
    approvals.deny_command,
    approvals.answer,
    approvals.auto_approve,
    approvals.autopilot,
    worker_steering.steer_task,
    receipts.show_receipt,
    receipts.audit_run,
    receipts.show_checkpoint,
    receipts.show_key,
    receipts.prove_inclusion,
    receipts.prove_consistency,
    fleet.steer_fleet,
    fleet.list_fleet,
    events.list_events,
    events.list_log,
    events.show_history,
    stream.stream_run,
    stream.stream_log,
)
WORKER_ROUTES = (
    health.banner,
    health.health,
    health.api_health,
    health.server_info,
    metrics.metrics_page,
)


def create_app(services: Services, measured: Metrics | None = None, role: str = "all") -> Litestar:
    """
    Build the API over the services it is handed. Whoever hands them over starts and closes them. A worker only says how
    it is.

    Metrics that something else is measured into, too, are handed over with them.
    """
    measured = measured or Metrics()
    access = Access(services.log)
    given: dict[str, object] = {
        "services": services,
        "access": access,
        "metrics": measured,
        "readers": CapacityLimiter(stream.MAX_READERS),
    }
    dependencies = {name: _provide(value) for name, value in given.items()}
    dependencies["reading"] = Provide(provide_reading, sync_to_thread=False)
    dependencies["asking"] = Provide(asking_over(services, access, measured), sync_to_thread=False)
    return PoliteApp(
        route_handlers=[Router("/", route_handlers=WORKER_ROUTES if role == "worker" else ROUTES)],
        dependencies=dependencies,
        exception_handlers=HANDLERS,
        middleware=[told_when_cut_short, DefineMiddleware(BearerAuthentication, services=services)],
        before_request=refuse_unknown_parameters,
        before_send=[measured.count],
        request_max_body_size=services.settings.max_body_bytes,
        openapi_config=openapi.config(services.settings.version, openapi_page.DescriptionPage()),
        # How and where a process logs is its own business: see ops/serving/logs.py.
        logging_config=None,
        state=State({FINDINGS: services.findings}),
        # Never in debug mode: its pages show source text to whoever makes a request fail.
        debug=False,
    )


def _provide(value: object) -> Provide:
    def same() -> object:
        return value

    return Provide(same, sync_to_thread=False)
