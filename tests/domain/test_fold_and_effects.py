"""The fold is total and the same for everybody, and what is outstanding has the same name whoever asks."""

import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256

import msgspec
import pytest

from steersman.domain.event import Draft, Text, Unknown
from steersman.domain.facts.fold import evolve, replay
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.process.dispatch import advance
from steersman.domain.process.effects import next_effects
from steersman.tests.domain.fleet import Fleet, part
from steersman.tests.golden.samples import event
from steersman.tests.spec import Numbers


def story() -> Fleet:
    fleet = Fleet(part("One"), part("Two", 0)).to_gate()
    fleet.request_changes(1)
    fleet.settle()
    fleet.work(1)
    fleet.work(2)
    fleet.assemble()
    fleet.review(approved=True)
    fleet.merge()
    return fleet


def test_the_same_log_folds_to_the_same_state_in_one_go_or_in_pieces() -> None:
    fleet = story()
    for cut in range(0, len(fleet.facts), 7):
        assert replay(fleet.facts[cut:], replay(fleet.facts[:cut])) == fleet.run


@pytest.mark.parametrize("topic", CATALOGUE)
def test_a_fact_of_any_kind_is_folded_into_any_state(topic: str) -> None:
    kind = CATALOGUE[topic]
    if kind.OUTPUT:
        return
    states: Sequence[CoordinatorRun] = (CoordinatorRun(), Fleet(part("One")).run, story().run)
    for state in states:
        for run, root in (("r", "r"), ("c", "r"), (next(iter(state.children), "c"), "r"), (None, "r")):
            draft = Draft(stream="s", event=event(kind), run=run, root=root)
            (fact,) = Numbers().store([draft])
            assert isinstance(evolve(state, fact), CoordinatorRun)


def test_a_fact_of_a_newer_release_leaves_the_run_to_a_newer_replica() -> None:
    fleet = Fleet(part("One"))
    assert fleet.effects
    (fact,) = Numbers().store([fleet.run.coordinator(Unknown(topic="coordinator.future", payload={}))])
    run = evolve(fleet.run, fact)
    assert run.unknown_topic == "coordinator.future"
    assert next_effects(run) == ()
    assert advance(run, fleet.now) == ()


def test_the_versions_of_all_streams_are_kept() -> None:
    fleet = story()
    last = {fact.stream: fact.version for fact in fleet.facts}
    assert dict(fleet.run.versions) == last


def test_effects_have_the_same_ids_on_every_replica_and_after_every_restart() -> None:
    fleet = Fleet(part("One"), part("Two"))
    other = Fleet(part("One"), part("Two"))
    assert fleet.effects == other.effects
    fleet.crash()
    assert fleet.effects == other.effects


def test_an_effect_is_outstanding_until_its_fact_is_there() -> None:
    seen: list[str] = []
    fleet = Fleet(part("One"))
    seen.append(fleet.effects[0].id.rpartition("/")[2])
    fleet.work(1)
    seen.append(fleet.effects[0].id)
    fleet.assemble()
    assert fleet.effects == []
    fleet.review(approved=True)
    seen.append(fleet.effects[0].id)
    fleet.merge()
    seen.append(fleet.effects[0].id)
    assert seen == ["work", "r/assemble/1", "r/merge/1/1", "r/clear-away"]


def test_a_run_that_does_not_exist_needs_nothing() -> None:
    assert next_effects(CoordinatorRun()) == ()
    assert advance(CoordinatorRun(), Fleet(part("One")).now) == ()


def test_folding_many_corrections_costs_about_as_much_for_each() -> None:
    """Counts what is copied, not how long it takes: each fact replaces a bounded number of maps."""
    fleet = Fleet(part("One"))
    fleet.start(1)
    for _ in range(100):
        fleet.command("guidance", 1)
        fleet.settle()
    before = fleet.run
    fleet.command("guidance", 1)
    changed = [
        name
        for name in CoordinatorRun.__struct_fields__
        if getattr(fleet.run, name) is not getattr(before, name) and getattr(fleet.run, name) != getattr(before, name)
    ]
    assert set(changed) <= {"directives", "undecided", "waiting", "versions", "root_sequence"}
    kept = [d for d in before.directives if fleet.run.directives[d] is before.directives[d]]
    assert len(kept) == 100


def test_every_open_correction_is_found_by_how_far_it_is_and_a_closed_one_nowhere() -> None:
    fleet = Fleet(part("One"), part("Two"))
    fleet.start(1)
    fleet.start(2)
    for kind in ("guidance", "redirect", "guidance"):
        fleet.command(kind, 1)
    fleet.command("pause", 2)
    states = [replay(fleet.facts[:cut]) for cut in range(len(fleet.facts) + 1)]
    fleet.settle()
    for run in (*states, fleet.run, story().run):
        every = run.received()
        assert [d.position for d in every] == sorted(d.position for d in every)
        assert run.open_directives() == tuple(d for d in every if d.open)
        assert run.pending_directives() == tuple(d for d in every if d.open and not d.waits_at)
        assert {*run.undecided.values()} == {d.directive_id for d in every if d.waits_at and d.action is None}
        for child in run.children:
            assert run.open_for(child) == tuple(d for d in every if d.open and child in d.targets)
        assert run.unresolved == {d.directive_id for d in every if d.status == "needs_attention"}


def test_the_same_log_gives_the_same_decisions_whatever_the_hashes_of_this_process() -> None:
    program = "from steersman.tests.domain.test_fold_and_effects import crowd, digest\nprint(digest(crowd()))"
    said = {
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


def crowd() -> Fleet:
    """Many corrections of several children, some heard, some waiting, some not decided."""
    fleet = Fleet(part("One"), part("Two"), part("Three", 0))
    fleet.start(1)
    fleet.start(2)
    for n in range(30):
        fleet.command("guidance" if n % 3 else "redirect", 1 + n % 2)
        if n % 7 == 0:
            fleet.settle()
    return fleet


def digest(fleet: Fleet) -> str:
    """Return a digest of what was decided, what would be next, and what is outstanding."""
    said = [(fact.stream, fact.topic, repr(fact.event)) for fact in fleet.facts]
    drafts = [(draft.stream, repr(draft.event)) for draft in advance(fleet.run, fleet.now)]
    waits = [directive.directive_id for child in fleet.run.children for directive in fleet.run.open_for(child)]
    return sha256(repr((said, drafts, waits, next_effects(fleet.run))).encode()).hexdigest()


def test_an_erased_word_changes_no_decision() -> None:
    fleet = story()
    erased = [
        msgspec.structs.replace(fact, event=msgspec.structs.replace(fact.event, feedback=Text(None)))
        if hasattr(fact.event, "feedback")
        else fact
        for fact in fleet.facts
    ]
    run = replay(erased)
    assert (run.status, run.plan is not None) == (fleet.run.status, True)
    assert next_effects(run) == next_effects(fleet.run)
