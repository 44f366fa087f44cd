"""Whole lives of runs, as the domain decides them, to be stored again and again under other ids: long logs, quickly."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.numbering import BatchNeeds, Numbering
from steersman.adapters.log.recorder import Recorder
from steersman.adapters.log.sealing import Sealing
from steersman.adapters.log_format.event_codec import Encoded, EventCodec
from steersman.adapters.stores.memory import MemoryLog
from steersman.application.ports.log import Append
from steersman.application.writer.caller import service
from steersman.application.writer.run_log import RunLog
from steersman.domain.event import Draft, Text
from steersman.domain.facts.agent_output import MessageDelta
from steersman.domain.facts.child_run import output_stream
from steersman.domain.git import Commit
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.process import dispatch
from steersman.domain.projects.project import AddMember, CreateProject, add_member, create_project, replay
from steersman.domain.runs import review
from steersman.domain.runs.orchestration import StartRun, start_run
from steersman.domain.runs.planning import ProposedSubtask
from steersman.domain.runs.review import ReviewAssembly
from steersman.domain.steering import steering
from steersman.domain.steering.steering import SteerRun
from steersman.domain.work import child_ends, turns

USER = "bench"
SUBTASKS = 2
#: How many pieces of its message each agent sends: most of a log is what agents say.
SAID = 200
#: How many facts one transaction stores.
BATCH_FACTS = 4_000
UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
BASE = Commit(commit="1" * 40, tree="2" * 40)
MADE = Commit(commit="3" * 40, tree="4" * 40)


class Life:
    """One run in a log of its own, taken on step by step."""

    def __init__(self) -> None:
        self.log = MemoryLog(CATALOGUE)
        self.runs = RunLog(self.log, SYSTEM_CLOCK)
        self.run_id = str(uuid4())
        self.project_facts = 0
        self._begin()

    def to_gate(self) -> None:
        """Do the work, up to the person's gate."""
        self._advance()
        for subtask in range(1, SUBTASKS + 1):
            plan = self.runs.run(self.run_id).plan
            assert plan is not None
            child = plan.subtasks[subtask].child_run_id
            assert child is not None
            self._work(child)
            self._advance()
        self._decide(lambda run: review.integrate(run, MADE, of_round=1, has_changes=True, conflicts=()))
        self._decide(review.pass_gates)

    def say(self, directives: int) -> None:
        """Leave corrections that nobody has looked at yet, and that need no agent."""
        for _ in range(directives):
            said = SteerRun(directive_id=str(uuid4()), kind="send", instruction="Well done so far.", principal=USER)
            self._decide(lambda run, said=said: steering.steer_run(run, said, {}))

    def merge(self) -> None:
        """Approve, and end."""
        self._decide(lambda run: review.review(run, ReviewAssembly(approved=True, reviewer=USER)))
        self._decide(lambda run: review.prepare_merge(run, BASE.commit, MADE.commit))
        self._decide(lambda run: review.complete_merge(run, MADE.commit))
        self._decide(review.remove_worktrees)

    def drafts(self) -> list[Draft]:
        """Everything of it, in order, its project left out."""
        facts = self.log.read(0, 100_000)[self.project_facts :]
        return [Draft(stream=fact.stream, event=fact.event, run=fact.run, root=fact.root) for fact in facts]

    def _begin(self) -> None:
        project = replay(store_project(self.log, "project-of-lives"))
        self.project_facts = self.log.head()
        command = StartRun(
            run_id=self.run_id,
            work_plan_id=str(uuid4()),
            goal="Pages about the sea",
            user=USER,
            model_id="rehearsal",
            plan=tuple(ProposedSubtask(title=f"Part {n}", scope="All of it") for n in range(SUBTASKS)),
        )
        models = {member.name: "rehearsal" for member in project.team}
        drafts = start_run(command, project, BASE, "/srv/lives", models)
        append(self.log, drafts)

    def _work(self, child: str) -> None:
        at = datetime.now(UTC)
        self._decide(lambda run: turns.prepare_worktree(run, child, BASE, f"/srv/trees/{child}", at))
        self._decide(lambda run: turns.open_session(run, child, str(uuid4()), ()))
        self._decide(lambda run: turns.open_turn(run, child))
        self._decide(lambda run: turns.start_turn(run, child))
        said = MessageDelta(delta=Text("A few words of an agent, as they come one by one."), message_id="m")
        append(self.log, [Draft(stream=output_stream(child), event=said, run=child, root=self.run_id)] * SAID)
        self._decide(lambda run: turns.end_turn(run, child, "end_turn"))
        self._decide(lambda run: turns.commit_tree(run, child, MADE))
        self._decide(lambda run: child_ends.settle_child(run, child, at))

    def _advance(self) -> None:
        while self._decide(lambda run: dispatch.advance(run, datetime.now(UTC))):
            pass

    def _decide(self, decision: Callable[[Any], Sequence[Draft]]) -> Sequence[Any]:
        return self.runs.decide(self.run_id, decision, service(str(uuid4())))


def append(log: Any, drafts: Sequence[Draft]) -> Sequence[Any]:
    """Store drafts in streams that are new, or of output."""
    expected = {draft.stream: 0 for draft in drafts if not draft.event.OUTPUT}
    return log.append(service(str(uuid4())).append(drafts, expected, datetime.now(UTC)))


def store_project(log: Any, project_id: str) -> Sequence[Any]:
    """Store a project with a team of two, and return its facts."""
    command = CreateProject(
        project_id=project_id,
        name="Lives",
        origin="blank",
        working_directory="/srv/lives",
        default_branch="main",
        owner=USER,
    )
    facts = list(append(log, [create_project(command)]))
    for version, role in enumerate(("software-engineer", "tester"), 1):
        draft = add_member(replay(facts), AddMember(role_id=role))
        caller = service(str(uuid4()))
        facts += log.append(caller.append([draft], {draft.stream: version}, datetime.now(UTC)))
    return facts


class Copies:
    """A life as bytes, of which each copy has ids of its own."""

    def __init__(self, life: Life, numbers: Iterator[int]) -> None:
        codec = EventCodec(CATALOGUE)
        self._facts = [codec.encode(draft) for draft in life.drafts()]
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._facts)

    def next(self) -> list[Encoded]:
        """Return another one."""
        start = b"%08x" % next(self._numbers)

        def other(text: bytes) -> bytes:
            return UUID.sub(rb"%b\1" % start, text)

        def name(text: str | None) -> str | None:
            return None if text is None else other(text.encode()).decode()

        return [
            msgspec.structs.replace(
                fact,
                stream=name(fact.stream) or "",
                run=name(fact.run),
                root=name(fact.root),
                payload=msgspec.Raw(other(bytes(fact.payload))),
            )
            for fact in self._facts
        ]


def fill(log: Any, recorder: Recorder, sealing: Sealing, *, facts: int, at_gate: int, directives: int) -> int:
    """
    Store so many facts, or a few more: runs that were merged, and *at_gate* that wait with *directives* on each.

    Return how many runs there are.
    """
    store_project(log, "project-of-lives")
    numbers = count(1)
    waiting, ended = Life(), Life()
    waiting.to_gate()
    waiting.say(directives)
    ended.to_gate()
    ended.merge()
    gate, merged = Copies(waiting, numbers), Copies(ended, numbers)
    runs = [gate] * at_gate
    runs += [merged] * max(0, -(-(facts - log.head() - at_gate * len(gate)) // len(merged)))
    batch: list[Encoded] = []
    for number, copies in enumerate(runs, 1):
        batch += copies.next()
        if len(batch) >= BATCH_FACTS or number == len(runs):
            _commit(recorder, sealing, batch)
            batch = []
    return len(runs)


def _commit(recorder: Recorder, sealing: Sealing, facts: Sequence[Encoded]) -> None:
    now = datetime.now(UTC)
    append = Append(drafts=(), expected={}, at=now, principal="service", command_id=str(uuid4()))
    with recorder.transaction() as transaction:
        numbering = Numbering(transaction.known(BatchNeeds(), ""), lambda wanted: transaction.known(wanted, ""))
        numbering.add(append, numbering.place(append, facts))
        numbered = numbering.finish()
        sealing.seal(numbered)
        transaction.write(numbered, "", "")
    sealing.publish(numbered.head)
