"""Numbers about runs, each counted from the rows of views: what they used, and how a caller's projects stand."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from litestar import get
from litestar.params import FromPath

from ...domain.facts.run import TERMINAL
from ...domain.rejected import ProjectNotFound
from ...projections import project_view, run_list, token_usage
from ...projections.run_list import RunSummary
from ...projections.token_usage import TokenUsage
from ..request.one_run import run_row
from ..request.problems import refusals
from ..request.reading import MAX_PAGE, Reads
from ..request.what_waits import waiting_kinds

#: How many runs are listed where the newest are shown.
NEWEST = 10


class AgentTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What one run's agent has used. AI credits are not metered here."""

    run_id: str
    agent_name: str
    model_id: str
    turns: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    ai_credits: int | None = None


class TokenBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has used: of a coordinator, with all its children."""

    run_id: str
    input_tokens: int
    output_tokens: int
    total_tokens: int
    agents: Sequence[AgentTokens]


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many coordinator runs there are, at most the newest thousand of each project."""

    total: int
    active: int
    awaiting_review: int
    #: In which something waits for somebody: `GET /api/waiting` says what.
    waiting: int
    #: In which something stands in the way that a person or a newer release has to mend.
    held: int
    by_status: dict[str, int]


class OverviewBody(msgspec.Struct, frozen=True, kw_only=True):
    """All projects in which the caller has a role."""

    projects: int
    runs: RunCounts
    newest_runs: Sequence[RunSummary]


class DayBody(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs ended on a day, in UTC."""

    date: str
    completed: int
    ended: int


class LeaderBody(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent did in the newest runs."""

    agent_name: str
    runs: int
    total_tokens: int


class DashboardBody(msgspec.Struct, frozen=True, kw_only=True):
    """One project: its runs, what was finished when, and who used what in the newest ones."""

    project_id: str
    name: str | None
    runs: RunCounts
    newest_runs: Sequence[RunSummary]
    throughput: Sequence[DayBody]
    leaderboard: Sequence[LeaderBody]


@get("/api/runs/{run_id:str}/token-breakdown", sync_to_thread=True, responses=refusals(403, 404))
def show_token_breakdown(run_id: FromPath[str], reading: Reads) -> TokenBreakdown:
    """Return what each agent of a run has used, the run itself first."""
    row = run_row(reading, run_id)
    group = [usage for _, usage in reversed(reading.rows(token_usage.VIEW, row.kept.root))]
    own = [usage for usage in group if row.parent_run_id is None or usage.run_id == row.run_id]
    agents = [_agent(usage) for usage in own]
    used = sum(agent.input_tokens for agent in agents), sum(agent.output_tokens for agent in agents)
    return TokenBreakdown(
        run_id=row.run_id, input_tokens=used[0], output_tokens=used[1], total_tokens=sum(used), agents=agents
    )


@get("/api/overview", sync_to_thread=True, responses=refusals())
def show_overview(reading: Reads) -> OverviewBody:
    """Return how all of the caller's projects stand together."""
    group = project_view.user_group(reading.principal.user)
    roles = [role for _, role in reading.rows(project_view.ROLES_VIEW, group)]
    runs = [run for role in roles for run in project_runs(reading, role.project_id)]
    waiting = [kinds for role in roles for kinds in waiting_kinds(reading, role.project_id).items()]
    return OverviewBody(projects=len(roles), runs=counts(runs, len(waiting)), newest_runs=_newest(runs, dict(waiting)))


@get("/api/projects/{project_id:str}/dashboard", sync_to_thread=True, responses=refusals(404))
def show_dashboard(project_id: FromPath[str], reading: Reads) -> DashboardBody:
    """Return how a project stands."""
    reading.access.project(reading.principal, project_id)
    row = reading.row(project_view.VIEW, project_id)
    if row is None:
        raise ProjectNotFound
    runs, waiting = project_runs(reading, project_id), waiting_kinds(reading, project_id)
    newest = _newest(runs, waiting)
    used = [usage for run in newest for _, usage in reading.rows(token_usage.VIEW, run.execution_id)]
    return DashboardBody(
        project_id=project_id,
        name=row.name,
        runs=counts(runs, len(waiting)),
        newest_runs=newest,
        throughput=_throughput(runs),
        leaderboard=_leaders(usage for usage in used if usage.run_id != usage.root),
    )


def project_runs(reading: Reads, project_id: str) -> list[RunSummary]:
    """Return a project's newest coordinator runs, at most MAX_PAGE."""
    rows = reading.rows(run_list.VIEW, project_id, limit=MAX_PAGE)
    return [row for _, row in rows]


def counts(runs: Sequence[RunSummary], waiting: int) -> RunCounts:
    """Return how many of the runs are in which status, and in how many something waits."""
    by_status = Counter(run.status for run in runs)
    ended = sum(count for status, count in by_status.items() if status in TERMINAL)
    return RunCounts(
        total=len(runs),
        active=len(runs) - ended,
        awaiting_review=by_status["awaiting_review"],
        waiting=waiting,
        held=sum(bool(run.held) for run in runs),
        by_status=dict(sorted(by_status.items())),
    )


def _agent(usage: TokenUsage) -> AgentTokens:
    return AgentTokens(
        run_id=usage.run_id,
        agent_name=usage.agent_name,
        model_id=usage.model_id,
        turns=len(usage.turns),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def _newest(runs: Sequence[RunSummary], waiting: Mapping[str, Sequence[str]]) -> list[RunSummary]:
    found = sorted(runs, key=lambda run: run.kept.position, reverse=True)[:NEWEST]
    return [run_list.shown(run, waiting.get(run.execution_id, ())) for run in found]


def _throughput(runs: Iterable[RunSummary]) -> list[DayBody]:
    ended = [(run.ended_at[:10], run.status == "completed") for run in runs if run.ended_at]
    return [
        DayBody(
            date=day, completed=sum(done for at, done in ended if at == day), ended=[at for at, _ in ended].count(day)
        )
        for day in sorted({at for at, _ in ended}, reverse=True)
    ]


def _leaders(used: Iterable[TokenUsage]) -> list[LeaderBody]:
    runs, tokens = Counter[str](), Counter[str]()
    for usage in used:
        runs[usage.agent_name] += 1
        tokens[usage.agent_name] += usage.input_tokens + usage.output_tokens
    return [LeaderBody(agent_name=name, runs=count, total_tokens=tokens[name]) for name, count in runs.most_common()]
