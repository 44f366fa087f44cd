"""Steer a run in every order, crash between any two appends, and see that nothing is lost, doubled, or stuck."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from steersman.domain.event import Draft, Event
from steersman.domain.facts.assembly import (
    AssemblyCompleted,
    AssemblyDeclined,
    AssemblyStarted,
    MergeFailed,
    MergePrepared,
    ReviewApproved,
    ReviewRequested,
)
from steersman.domain.facts.bad_ends import WAYS, BadEnd, way_of
from steersman.domain.facts.child_run import (
    ENDED,
    Paused,
    ProcessesKilled,
    Resumed,
    RunCancelled,
    RunFailed,
    RunStarted,
)
from steersman.domain.facts.directive import (
    CLOSED,
    DirectiveMoved,
    RevisionExecution,
    SteeringDecided,
    SteeringReceived,
)
from steersman.domain.facts.fold import replay
from steersman.domain.facts.gates import GateSpec, Verdict
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.facts.work_plan import SubtaskDispatched
from steersman.domain.process.dispatch import advance
from steersman.domain.process.effects import (
    AssembleChildren,
    ClearAway,
    Effect,
    EndTurn,
    EndWorkers,
    MakePlan,
    MergeAssembly,
    PauseWorker,
    ResumeWorker,
    RunGate,
    WorkOnSubtask,
    next_effects,
)
from steersman.domain.projects.team import Member
from steersman.domain.rejected import Rejected
from steersman.domain.runs import review
from steersman.domain.runs.planning import make_plan
from steersman.domain.steering import steering
from steersman.domain.steering.decision_table import MAX_RECOVERY_ATTEMPTS
from steersman.domain.work import child_ends, turns, workers
from steersman.domain.work.workers import Fingerprint
from steersman.tests.domain.fleet import BASE, LOADS, TEAM, Fleet, part

PLANS = (
    (part("One"),),
    (part("One"), part("Two")),
    (part("One"), part("Two", 0)),
    (part("One"), part("Two", 0), part("Three", 0, 1)),
    (part("Write tests"), part("Fix software features", agent="bob"), part("Explain", 1)),
    (),
)
#: Somebody fits the titles, so that authors can be rotated.
FITTING: tuple[Member, ...] = (
    *TEAM,
    Member(name="cid", role_id="tester", role_title="Writes tests", model_id="rehearsal/cid"),
)
#: What somebody may say, and through which door; those that end something are rarer.
CORRECTIONS = (
    *("run send", "run redirect", "run amend", "child send", "child redirect", "child amend"),
    *("worker pause", "worker resume", "worker guidance", "worker redirect", "worker guidance", "worker pause"),
    *("gate aloud", "gate aloud", "gate mutely", "gate lately"),
    *("signal request-changes", "signal request-changes", "signal blocking", "signal advisory"),
    *("worker abort", "child stop", "run stop"),
)
#: More outside answers than any of these runs needs to come to rest.
PATIENCE = 600
ENDS_OF_WHAT_IS_OPEN = (ReviewRequested, AssemblyCompleted, AssemblyDeclined, MergeFailed, RunCancelled, RunFailed)


class Watched(Fleet):
    """A fleet whose every append is looked at."""

    def __init__(self, *plan: Any, team: Sequence[Member], max_iterations: int, gates: Sequence[GateSpec] = ()) -> None:
        self.receipts: dict[str, str] = {}
        self.decided: set[str] = set()
        self.closed: dict[str, str] = {}
        self.confirmed: Counter[tuple[str, str, int]] = Counter()
        self.charges: Counter[str] = Counter()
        super().__init__(*plan, team=team, max_iterations=max_iterations, gates=gates)

    def put(self, drafts: Iterable[Draft]) -> list[Event]:
        drafts = list(drafts)
        # What was on the log before this append is all that its facts may rest on.
        receipts, decided = dict(self.receipts), set(self.decided)
        if self.run.stopping:
            begun = (RunStarted, SubtaskDispatched, AssemblyStarted, ReviewApproved, MergePrepared)
            assert not [d for d in drafts if isinstance(d.event, begun)], "something was begun while the run is stopped"
        for draft in drafts:
            self._check(draft.event, receipts, decided)
        stops = [d.directive_id for d in self.run.open_directives() if d.stops_run]
        said = super().put(drafts)
        for stop in stops:
            assert self.run.ended or self.directive(stop).open, "a stop was lost"
        for draft in drafts:
            if isinstance(draft.event, ENDS_OF_WHAT_IS_OPEN) and draft.run == "r":
                assert not self.run.open_directives(), f"{draft.event.TOPIC} left corrections open"
        return said

    def _check(self, event: Event, receipts: dict[str, str], decided: set[str]) -> None:
        match event:
            case SteeringReceived():
                assert event.directive_id not in self.receipts
                self.receipts[event.directive_id] = event.payload_hash
            case SteeringDecided():
                assert event.directive_id in receipts, "decided without a receipt"
                self.decided.add(event.directive_id)
                self.charges[event.directive_id] += event.charged
                assert self.charges[event.directive_id] <= 1, "charged twice"
            case DirectiveMoved(work_plan_id=None):
                before = self.closed.get(event.directive_id)
                if before is not None:
                    assert before == "needs_attention", f"{event.directive_id} was {before} already"
                    assert event.status in ("decided", "expired")
                    del self.closed[event.directive_id]
                if event.status in CLOSED:
                    self.closed[event.directive_id] = event.status
            case RevisionExecution() | Paused() | Resumed() | ProcessesKilled():
                assert receipts.get(event.directive_id) == event.receipt_payload_hash, "an effect without its receipt"
                assert event.directive_id in decided, "an effect without a decision"
                if isinstance(event, RevisionExecution) and event.state == "effect_confirmed":
                    key = (event.directive_id, event.child_run_id, event.attempt)
                    self.confirmed[key] += 1
                    assert self.confirmed[key] == 1, "confirmed twice"
            case _:
                pass

    # What the outside answers

    def answer(self, effect: Effect, *, well: bool = True, capabilities: Sequence[str] = LOADS) -> bool:
        """Let the outside take one step with an effect; return whether there was one to take."""
        try:
            return bool(self.put(self._answered(effect, well, capabilities)))
        except (turns.Overtaken, turns.InterruptedTooOften):
            return False

    def _answered(self, effect: Effect, well: bool, capabilities: Sequence[str]) -> Sequence[Draft]:
        run = self.run
        match effect:
            case MakePlan():
                if not well:
                    return review.fail_run(run, error_code="agent_exited", message="", retryable=True)
                parts = [part("Planned"), part("Planned too", 0)]
                models = {member.name: "rehearsal" for member in self.team}
                return (run.on_plan(make_plan("w", parts, self.team, models, {}), "w"),)
            case WorkOnSubtask():
                return self._worked(effect.child_run_id, well, capabilities)
            case AssembleChildren() if run.assembly is not None:
                return review.integrate(run, self.commit(), of_round=run.assembly.round, has_changes=True, conflicts=())
            case RunGate():
                if not well and self.now.second % 3 == 0:
                    return review.block_gate(run, effect.kind, effect.id, "timed_out")
                bad = Verdict(outcome="red" if self.now.second % 2 else "revise", feedback="Hm.")
                verdict = Verdict(outcome="passed") if well else bad
                return review.complete_gate(run, effect.kind, effect.id, verdict, self.touched)
            case MergeAssembly() if run.assembly is not None and run.assembly.merge is None:
                return review.prepare_merge(run, "c0", "m1")
            case MergeAssembly():
                return review.complete_merge(run, "m1") if well else review.block_merge(run, "head_moved")
            case EndTurn():
                return turns.end_turn(run, effect.child_run_id, "cancelled")
            case PauseWorker():
                found = Fingerprint(tree_hash="t", workspace_hash="w")
                return workers.confirm_pause(run, effect.directive_id, effect.child_run_id, found)
            case ResumeWorker():
                return workers.confirm_resume(run, effect.directive_id, effect.child_run_id)
            case EndWorkers():
                killed = dict.fromkeys(workers.to_be_ended(run, effect.directive_id), (1, 2))
                return workers.confirm_end(run, effect.directive_id, killed, self.now)
            case ClearAway():
                return review.remove_worktrees(run)
            case _:
                raise AssertionError(f"nobody answers {effect}")

    def _worked(self, child_id: str, well: bool, capabilities: Sequence[str]) -> Sequence[Draft]:
        """The next step of a child's own thread, as `work_on_subtask` takes it."""
        run = self.run
        child, subtask = turns.child_at_work(run, child_id)
        turn = child.turn
        in_turn = turn is not None and turn.stop_reason is None
        if turns.is_being_stopped(run, child_id) or child.status == "paused":
            return ()
        if child.status == "pausing" and not in_turn:
            return ()
        if child.head is None:
            return turns.prepare_worktree(run, child_id, BASE, f"/trees/{child_id}", self.now)
        if turn is not None and in_turn:
            return self._turned(child_id, well, capabilities)
        if turn is not None and not turn.committed:
            return turns.commit_tree(run, child_id, self.commit() if well else child.head)
        if subtask.outdated and well:
            return turns.rebuild_base(run, child_id, self.commit(), self.commit(), self.now)
        if subtask.outdated:
            return child_ends.dispatch_outdated_afresh(run, child_id, self.now)
        if subtask.status == "dispatched":
            return turns.take_up(run, child_id, self.now)
        return turns.open_turn(run, child_id) or child_ends.settle_child(run, child_id, self.now)

    def _turned(self, child_id: str, well: bool, capabilities: Sequence[str]) -> Sequence[Draft]:
        run, child = self.run, self.run.children[child_id]
        assert child.turn is not None
        if child.session_id is None:
            return turns.open_session(run, child_id, f"session {child_id}", capabilities)
        if turns.is_cut_short(run, child_id):
            return turns.end_turn(run, child_id, "cancelled")
        if not well and self.now.second % 4 == 0:
            return turns.lose_workplace(run, child_id, "vanished")
        if not well:
            code = sorted(WAYS)[self.now.second % len(WAYS)]
            unfinished = self.commit() if way_of(code).kept == "half-done work" else None
            end = BadEnd(code=code, message="gone")
            return turns.fail_execution(run, child_id, code) or child_ends.end_badly(
                run, child_id, self.now, end, unfinished
            )
        if not child.turn.started:
            return turns.start_turn(run, child_id)
        return turns.end_turn(run, child_id, "end_turn")

    # Rest

    def at_rest(self) -> bool:
        """Whether only a person can move the run on."""
        if self.run.ended:
            return self.run.worktrees_removed
        blocked = self.run.plan is not None and self.run.plan.status == "assembly_blocked"
        return (self.run.status == "awaiting_review" or blocked) and not self.effects

    def come_to_rest(self) -> None:
        """Let the outside answer everything well, and resume whoever is paused, until only a person can go on."""
        for _ in range(PATIENCE):
            self.settle()
            if self.at_rest():
                assert not self.run.open_directives(), f"open at rest: {self.run.open_directives()}"
                return
            for child in self.run.children.values():
                if child.status == "paused" and not any(d.verb == "resume" for d in self.run.open_directives()):
                    self.try_to(lambda child=child: self.command("resume", 0, child_run_id=child.run_id))
            self.settle()
            answered = [self.answer(effect) for effect in self.effects]
            if not any(answered):
                assert advance(self.run, self.now, self.team), f"stuck: {self.run}"
        raise AssertionError(f"does not come to rest: {self.effects} {self.run}")

    def try_to(self, say: Any) -> bool:
        """Say something that may be refused; a refusal stores nothing."""
        before = len(self.facts)
        try:
            say()
        except Rejected:
            assert len(self.facts) == before
            return False
        return True


class Steering(RuleBasedStateMachine):
    fleet: Watched

    @initialize(
        plan=st.sampled_from(PLANS),
        team=st.sampled_from((TEAM, FITTING)),
        iterations=st.integers(1, 6),
        head=st.booleans(),
        gates=st.sampled_from(((), (GateSpec(kind="rai"),), (GateSpec(kind="rai"), GateSpec(kind="build-test")))),
    )
    def begin(self, plan: Any, team: Any, iterations: int, head: bool, gates: Any) -> None:
        self.fleet = Watched(*plan, team=team, max_iterations=iterations, gates=gates)
        if head:
            self.fleet.come_to_rest()

    # The driver

    @rule()
    def one_step_follows(self) -> None:
        self.fleet.put(advance(self.fleet.run, self.fleet.now, self.fleet.team))

    @rule()
    def all_steps_follow(self) -> None:
        self.fleet.settle()

    @rule(
        data=st.data(),
        times=st.integers(1, 8),
        well=st.integers(0, 9).map(lambda n: n > 0),
        capabilities=st.sampled_from((LOADS, LOADS, ())),
    )
    def the_outside_answers(self, data: st.DataObject, times: int, well: bool, capabilities: Any) -> None:
        for n in range(times):
            effects = self.fleet.effects
            if effects:
                effect = data.draw(st.sampled_from(effects))
                self.fleet.answer(effect, well=well or n + 1 < times, capabilities=capabilities)

    @rule()
    def everything_goes_well_to_the_next_rest(self) -> None:
        self.fleet.come_to_rest()

    @rule()
    def the_service_crashes(self) -> None:
        before = self.fleet.run
        self.fleet.crash()
        assert self.fleet.run == before
        for child in before.children.values():
            if child.turn is not None and child.turn.stop_reason is None and child.status == "in_progress":
                self.fleet.try_to(
                    lambda child=child: self.fleet.put(
                        turns.interrupt_turn(self.fleet.run, child.run_id, found_in_history=True, session_kept=True)
                    )
                )

    # People and gates

    @rule(said=st.lists(st.tuples(st.sampled_from(CORRECTIONS), st.integers(0, 2)), min_size=1, max_size=4))
    def corrections_come_in_together(self, said: list[tuple[str, int]]) -> None:
        for words, n in said:
            self.fleet.try_to(lambda words=words, n=n: self._say(words, n))

    def _say(self, words: str, n: int) -> None:
        fleet, (door, kind) = self.fleet, words.split()
        parts = fleet.run.plan.subtasks if fleet.run.plan else {}
        with_child = [i for i, s in sorted(parts.items()) if s.child_run_id]
        target = with_child[n % len(with_child)] if with_child else None
        match door:
            case "run":
                fleet.steer(kind, touched=fleet.touched)
            case "child" if target:
                fleet.steer(kind, target, touched=fleet.touched)
            case "worker" if target:
                fleet.command(kind, target)
            case "gate":
                words, tree = ("" if kind == "mutely" else "Better."), ("another" if kind == "lately" else None)
                fleet.request_changes(*([target] if target and n else []), words=words, tree=tree)
            case "signal":
                fleet.signal("rai", *([target] if target and n else []), severity=kind)
            case _:
                return

    @precondition(lambda self: self.fleet.run.status == "awaiting_review")
    @rule(approved=st.integers(0, 4).map(lambda n: n > 0))
    def somebody_decides_at_the_gate(self, approved: bool) -> None:
        self.fleet.try_to(lambda: self.fleet.review(approved=approved))

    @rule(data=st.data(), action=st.sampled_from(("retry", "abandon")))
    def somebody_resolves(self, data: st.DataObject, action: Any) -> None:
        for directive in self.fleet.run.received():
            if directive.status == "needs_attention":
                self.fleet.try_to(
                    lambda d=directive: self.fleet.put(steering.resolve(self.fleet.run, d.directive_id, action))
                )

    # What always holds

    @invariant()
    def budgets_are_kept(self) -> None:
        run = self.fleet.run
        if run.plan is not None:
            assert run.plan.steering_iterations <= run.max_steering_iterations
            assert all(s.recovery_attempts <= MAX_RECOVERY_ATTEMPTS for s in run.plan.subtasks.values())

    @invariant()
    def whoever_works_is_somebodys_and_whatever_is_under_way_has_somebody(self) -> None:
        run: CoordinatorRun = self.fleet.run
        parts = run.plan.subtasks.values() if run.plan else ()
        at_work = {s.child_run_id for s in parts if s.in_flight}
        assert None not in at_work
        assert run.ended or at_work == {c.run_id for c in run.children.values() if c.status not in ENDED}

    @invariant()
    def the_run_waits_for_somebody(self) -> None:
        fleet = self.fleet
        waits_for_a_person = fleet.at_rest()
        assert waits_for_a_person or fleet.effects or advance(fleet.run, fleet.now, fleet.team), fleet.run

    @invariant()
    def what_an_agent_was_asked_is_in_its_open_turn(self) -> None:
        for directive in self.fleet.run.open_directives():
            for child_id, state in directive.targets.items():
                if state == "initiated":
                    turn = self.fleet.run.children[child_id].turn
                    assert turn is not None
                    assert turn.stop_reason is None, f"{directive.directive_id} will never be told"
                    assert directive.directive_id in turn.directive_ids

    @invariant()
    def effects_have_ids_of_their_own(self) -> None:
        ids = [effect.id for effect in self.fleet.effects]
        assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        again = replay(fact for fact in self.fleet.facts if not fact.event.OUTPUT)
        assert again == self.fleet.run
        assert next_effects(again) == next_effects(self.fleet.run)
        now, team = self.fleet.now, self.fleet.team
        assert list(advance(again, now, team)) == list(advance(self.fleet.run, now, team))
        self.fleet.come_to_rest()


TestSteering = Steering.TestCase
TestSteering.settings = settings(max_examples=40, stateful_step_count=40, derandomize=True, print_blob=False)
