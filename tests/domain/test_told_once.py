"""What was said before is told to a new author as something to do exactly if the work that it goes on from is without it."""

import re
from collections.abc import Callable, Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.domain.facts.bad_ends import BadEnd
from steersman.domain.facts.child_run import TurnOpened
from steersman.domain.steering.decision_table import MAX_RECOVERY_ATTEMPTS
from steersman.domain.steering.follow import feedback_rounds
from steersman.domain.work import child_ends, turns
from steersman.tests.domain.fleet import BASE, LOADS, Fleet, part

DONE = "# Feedback that the work has already"
DEAD = BadEnd(code="agent_exited", message="It broke.")


def words_of(prompt: str, heading: str | None = None) -> list[str]:
    """Return what was said of a prompt, or of one part of it."""
    parts = re.split(r"^(?=# )", prompt, flags=re.MULTILINE)
    return re.findall(r"WORD\d+", "".join(p for p in parts if heading is None or p.startswith(heading)))


class History:
    """A part whose authors are played beside the domain: what each has heard, and what each commit was made with."""

    def __init__(self) -> None:
        self.fleet = Fleet(part("Paint"), max_iterations=1_000)
        self.said = 0
        #: What the present agent knows, and what is in each commit.
        self.known: set[str] = set()
        self.made_with: dict[str, frozenset[str]] = {BASE.commit: frozenset()}
        self.told_anew = 0
        self.capabilities: Sequence[str] = LOADS

    @property
    def in_turn(self) -> bool:
        turn = self.fleet.child(1).turn if self.fleet.subtask(1).child_run_id else None
        return turn is not None and not turn.committed and self.fleet.subtask(1).in_flight

    def word(self) -> str:
        self.said += 1
        return f"WORD{self.said}"

    # What happens, each only where it can

    def begin(self) -> None:
        """The agent is asked; one that is new is told everything."""
        if self.in_turn or not self.fleet.subtask(1).in_flight:
            return
        fleet = self.fleet
        is_new = not fleet.child(1).briefed
        before = fleet.child(1).prior_commit
        fleet.prepare(1)
        head = fleet.child(1).head
        assert head is not None
        if fleet.child(1).turn is None:
            self.made_with[head.commit] = self.made_with[before] if before else frozenset()
        fleet.open_session(1, self.capabilities)
        prompt = fleet.open_turn(1)
        if prompt is None:
            self.settle()
            return
        if is_new:
            self.check(prompt, head.commit)
            self.known = set()
        fleet.put(turns.start_turn(fleet.run, fleet.child_id(1)))
        fleet.settle()
        self.known.update(words_of(prompt))

    def check(self, prompt: str, commit: str) -> None:
        """What is in the commit is named, and the rest of what was said is to be done."""
        self.told_anew += 1
        carried = self.fleet.child(1).turn
        assert carried is not None
        told = {str(d.feedback) for d in feedback_rounds(self.fleet.run, 1) if d.status != "pending"}
        waiting = {str(self.fleet.directive(i).feedback) for i in carried.directive_ids}
        has = self.made_with[commit] & (told - waiting)
        assert set(words_of(prompt, DONE)) == has
        assert sorted(words_of(prompt)) == sorted(told | waiting), "each exactly once"

    def end(self, tree: str | None = None, *, changes: bool = True, reason: str = "end_turn") -> None:
        if not self.in_turn:
            return
        fleet, child = self.fleet, self.fleet.child(1)
        assert child.head is not None
        commit = fleet.commit(tree) if changes else child.head
        if commit.tree == child.head.tree:
            commit = child.head
        fleet.put(turns.end_turn(fleet.run, child.run_id, reason))
        fleet.put(turns.commit_tree(fleet.run, child.run_id, commit))
        if commit != child.head:
            new = self.known if reason == "end_turn" else set[str]()
            self.made_with[commit.commit] = self.made_with[child.head.commit] | new
        self.settle()

    def settle(self) -> None:
        fleet = self.fleet
        waits = any(d.waits_for(fleet.child_id(1)) for d in fleet.run.open_directives())
        if fleet.child(1).turn is not None and not waits:
            fleet.finish(1)
        if fleet.plan.status == "assembling":
            fleet.assemble()

    def cut(self) -> None:
        """Somebody redirects an agent in the middle of its turn, and it has done something by then."""
        if self.in_turn:
            self.fleet.command("redirect", 1, words=self.word())
            self.fleet.settle()
            self.end(reason="cancelled")

    def guide(self) -> None:
        if self.fleet.subtask(1).in_flight and self.fleet.subtask(1).child_run_id:
            self.fleet.command("guidance", 1, words=self.word())
            self.fleet.settle()

    def lose(self) -> None:
        """The workplace is lost, so that an agent which knows nothing is told everything anew."""
        if not self.in_turn:
            return
        fleet = self.fleet
        fleet.put(turns.lose_workplace(fleet.run, fleet.child_id(1), "vanished"))
        fleet.put(
            turns.open_session(fleet.run, fleet.child_id(1), f"session {self.said} {self.told_anew}", self.capabilities)
        )
        prompt = turns.prompt_now(fleet.run, fleet.child_id(1), asked=False)
        parent = fleet.child(1).turn
        assert parent is not None
        later = {str(d.feedback) for d in fleet.run.open_directives() if d.waits_for(fleet.child_id(1))}
        assert not later & set(words_of(prompt))
        done = set(words_of(prompt, DONE))
        assert done <= self.made_with[parent.parent.commit]
        assert len(words_of(prompt)) == len(set(words_of(prompt)))
        self.known = set(words_of(prompt))
        fleet.put(turns.start_turn(fleet.run, fleet.child_id(1)))

    def die(self, *, keeps: bool) -> None:
        if not self.in_turn:
            return
        fleet, child = self.fleet, self.fleet.child(1)
        assert child.head is not None
        half = fleet.commit() if keeps else None
        if half is not None:
            self.made_with[half.commit] = self.made_with[child.head.commit]
        fleet.put(child_ends.end_badly(fleet.run, child.run_id, fleet.now, DEAD, half))
        fleet.settle()

    def correct(self) -> None:
        """A person asks for changes at the gate, or sets a run going again that stands still."""
        fleet = self.fleet
        if fleet.run.status == "awaiting_review":
            fleet.request_changes(1, words=self.word())
        elif fleet.plan.status == "assembly_blocked" and fleet.subtask(1).recovery_attempts < MAX_RECOVERY_ATTEMPTS:
            fleet.steer("redirect", words=self.word())
        fleet.settle()

    def forget(self) -> None:
        """From now on agents can load no session, or can again: who cannot is replaced when its work is sent back."""
        self.capabilities = () if self.capabilities else LOADS


STEPS: Mapping[str, Callable[[History], None]] = {
    "begin": History.begin,
    "end": History.end,
    "end without a change": lambda h: h.end(changes=False),
    "end as it began": lambda h: h.end(BASE.tree),
    "cut short": History.cut,
    "guidance": History.guide,
    "lose the workplace": History.lose,
    "die": lambda h: h.die(keeps=False),
    "die and leave something": lambda h: h.die(keeps=True),
    "correct": History.correct,
    "forget": History.forget,
}


@settings(max_examples=400)
@given(st.lists(st.sampled_from(list(STEPS)), max_size=40))
def test_a_new_author_is_told_what_its_commit_is_without_and_nothing_that_it_has(steps: Sequence[str]) -> None:
    history = History()
    history.begin()
    for step in steps:
        STEPS[step](history)
        history.begin()


def test_what_an_author_has_done_is_named_to_the_next_one_and_not_told_again() -> None:
    history = History()
    for step in ("forget", "begin", "end", "correct", "begin", "end", "correct"):
        STEPS[step](history)
    prompt = history.fleet.start(1)
    assert words_of(prompt, DONE) == ["WORD1"]
    assert words_of(prompt, "# Feedback on earlier attempts") == ["WORD2"]
    (first, second, third) = (e.tells for e in history.fleet.told(TurnOpened) if isinstance(e, TurnOpened))
    assert (first, second, third) == ((), ("d1",), ("d2",))


def test_what_did_not_fit_onto_a_rebuilt_base_is_told_again() -> None:
    fleet = Fleet(part("Dig"), part("Paint", 0)).to_gate()
    fleet.request_changes(2, words="WORD1")
    fleet.settle()
    fleet.work(2)
    fleet.assemble()
    fleet.request_changes(1, words="WORD2")
    fleet.settle()
    fleet.work(1)
    fleet.put(child_ends.dispatch_outdated_afresh(fleet.run, fleet.child_id(2), fleet.now))
    fleet.settle()
    prompt = fleet.start(2)
    assert words_of(prompt, DONE) == []
    assert words_of(prompt, "# Feedback on earlier attempts") == ["WORD1"]
