"""A history to fold: what the domain really decides about a run, written to a log step by step."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec
import pytest

from steersman.adapters.stores.memory import MemoryLog
from steersman.adapters.stores.memory_views import MemoryViews
from steersman.application.ports.log import Append
from steersman.application.views.project_views import catch_up
from steersman.domain.event import Draft, Event, Fact, Text
from steersman.domain.facts.agent_output import MessageDelta, ToolCalled
from steersman.domain.facts.child_run import ChildRun, output_stream
from steersman.domain.facts.fold import replay
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.git import Commit
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.process import dispatch
from steersman.domain.projects import project as projects
from steersman.domain.runs import review
from steersman.domain.runs.orchestration import StartRun, start_run
from steersman.domain.runs.planning import ProposedSubtask
from steersman.domain.work import child_ends, turns
from steersman.projections.catalogue import VIEWS
from steersman.projections.view import View

Kind = TypeVar("Kind", bound=msgspec.Struct)

START = datetime(2026, 6, 7, 21, 9, 45, tzinfo=UTC)
BASE = Commit(commit="c0", tree="t0")


class History:
    """One project with a team of two, and one coordinator run `r` on it."""

    def __init__(self) -> None:
        self.log = MemoryLog(CATALOGUE)
        self.views = MemoryViews()
        self._steps = 0
        self._run = CoordinatorRun()
        self._versions = Counter[str]()

    @property
    def at(self) -> datetime:
        """The moment of the next step."""
        return START + timedelta(seconds=self._steps)

    @property
    def run(self) -> CoordinatorRun:
        """What the domain makes of the facts so far."""
        self._run = replay(self.log.read_tree("r", after=self._run.root_sequence), self._run)
        return self._run

    @property
    def facts(self) -> Sequence[Fact]:
        """Everything so far."""
        return self.log.read(limit=100_000)

    def put(self, drafts: Sequence[Draft]) -> Sequence[Fact]:
        """Store what was decided."""
        expected = {draft.stream: self._versions[draft.stream] for draft in drafts}
        append = Append(
            drafts=tuple(drafts), expected=expected, at=self.at, principal="alice", command_id=f"command {self._steps}"
        )
        self._steps += 1
        self._versions.update(draft.stream for draft in drafts)
        return self.log.append(append)

    def project(self) -> None:
        """Create the project and its team."""
        created = projects.CreateProject(
            project_id="p",
            name="Shop",
            origin="blank",
            working_directory="/srv/shop",
            default_branch="main",
            owner="alice",
        )
        self.put([projects.create_project(created)])
        for role in ("software-engineer", "tester"):
            project = projects.replay(self.log.read_stream("project/p"))
            self.put([projects.add_member(project, projects.AddMember(role_id=role))])

    def start(self, *plan: ProposedSubtask, planned: bool = True) -> None:
        """Give the team a goal; without parts, a plan of two, the second after the first."""
        self.project()
        parts = plan or (
            ProposedSubtask(title="Build", scope="all of it"),
            ProposedSubtask(title="Test", depends_on=(0,)),
        )
        command = StartRun(
            run_id="r",
            work_plan_id="w",
            goal="Sell things",
            user="alice",
            model_id="rehearsal/x",
            plan=parts if planned else None,
            autopilot=True,
        )
        project = projects.replay(self.log.read_stream("project/p"))
        models = {member.name: f"rehearsal/{member.name}" for member in project.team}
        self.put(start_run(command, project, BASE, "/srv/shop", models))

    def advance(self) -> None:
        """Decide everything that follows from the log alone."""
        while drafts := dispatch.advance(self.run, self.at):
            self.put(drafts)

    def child(self, subtask_id: int) -> ChildRun:
        """The present child run of a subtask."""
        plan = self.run.plan
        assert plan is not None
        child_id = plan.subtasks[subtask_id].child_run_id
        assert child_id is not None
        return self.run.children[child_id]

    def output(self, run_id: str, *events: Event) -> None:
        """Let a run's agent say something."""
        self.put([Draft(stream=output_stream(run_id), event=event, run=run_id, root="r") for event in events])

    def begin_work(self, subtask_id: int, *, tools: int = 2) -> str:
        """Take a subtask's child run into its turn; return its id."""
        child = self.child(subtask_id).run_id
        self.put(turns.prepare_worktree(self.run, child, BASE, f"/trees/{subtask_id}", self.at))
        self.put(turns.open_session(self.run, child, "session", ()))
        self.put(turns.open_turn(self.run, child))
        self.put(turns.start_turn(self.run, child))
        for _ in range(tools):
            self.output(child, MessageDelta(delta=Text("Looking."), message_id="m"))
            self.output(child, ToolCalled(call_id="1", tool_name=Text("read"), arguments=Text("{}")))
        return child

    def work(self, subtask_id: int, *, changes: bool = True, tools: int = 2) -> str:
        """Take a subtask's child run to its end; return its id."""
        child = self.begin_work(subtask_id, tools=tools)
        commit = Commit(commit=f"c{subtask_id}", tree=f"t{subtask_id}") if changes else BASE
        self.put(turns.end_turn(self.run, child, "end_turn"))
        self.put(turns.commit_tree(self.run, child, commit))
        self.put(child_ends.settle_child(self.run, child, self.at))
        return child

    def fail(self, subtask_id: int) -> str:
        """Let a subtask's child run fail in its turn; return its id."""
        child = self.begin_work(subtask_id)
        words = "It \N{SNOWMAN} crashed."
        self.put(
            child_ends.fail_child(self.run, child, self.at, error_code="agent_exited", message=words, retryable=True)
        )
        return child

    def to_gate(self) -> None:
        """Take the plan of two to its human gate."""
        self.start()
        self.advance()
        self.work(1)
        self.advance()
        self.work(2, changes=False)
        self.advance()
        self.put(
            review.integrate(
                self.run,
                Commit(commit="c9", tree="t9"),
                of_round=self.run.assembly.round,
                has_changes=True,
                conflicts=(),
            )
        )
        self.put(review.pass_gates(self.run))

    def decide(self, *, approved: bool) -> None:
        """Decide at the gate."""
        command = review.ReviewAssembly(approved=approved, reviewer="bob", feedback="" if approved else "No.")
        self.put(review.review(self.run, command))

    def merge(self) -> None:
        """Make the merge that was approved."""
        self.put(review.prepare_merge(self.run, "c0", "c10"))
        self.put(review.complete_merge(self.run, "c10"))

    def row(self, view: View[Kind], key: str) -> Kind | None:
        """Return a row of a view that has folded everything so far."""
        catch_up(self.views, self.log, VIEWS)
        body = self.views.get(view.name, key)
        return None if body is None else view.decode(body)

    def rows(self, view: View[Kind], group: str) -> list[Kind]:
        """Return a group of a view that has folded everything so far."""
        catch_up(self.views, self.log, VIEWS)
        return [view.decode(row.body) for row in self.views.list(view.name, group)]


@pytest.fixture
def history() -> History:
    """A history that nothing has happened in."""
    return History()
