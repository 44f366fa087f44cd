"""What `explain` says of a run, at the moments at which somebody asks."""

from steersman.application.effects.carry_out import carry_out
from steersman.application.ports.effect_state import EffectState, PlaceHolder
from steersman.application.ports.leases import Holder
from steersman.application.queries.explain_run import Explanation, explain
from steersman.domain.process.dispatch import advance
from steersman.domain.process.effects import PauseWorker, next_effects
from steersman.domain.runs import review
from steersman.domain.work import child_ends
from steersman.tests.application.service import Service, part


def held(*effects: EffectState, alive: bool = True) -> Holder:
    return Holder(replica="one", epoch=3, alive=alive, effects=effects)


def who(found: Explanation) -> list[str]:
    return [wait.who for wait in found.waits]


def test_an_effect_that_failed_is_shown_with_its_reason_and_its_next_try() -> None:
    service = Service()
    service.start(part("one"))
    service.shop.decide("r", lambda run: advance(run, service.clock.now()))
    (effect,) = next_effects(service.run)
    state = EffectState(effect_id=effect.id, state="waits_for_next_try", failures=2, last_error="full", next_try="then")
    found = explain(service.run, held(state))
    (shown,) = found.effects
    assert (shown.kind, shown.state, shown.failures, shown.last_error) == (
        "WorkOnSubtask",
        "waits_for_next_try",
        2,
        "full",
    )
    assert who(found) == ["driver"]
    assert found.owner is not None
    assert found.owner.epoch == 3


def test_what_waits_for_a_place_says_for_which_runs_they_are_taken_and_counts_those_of_others() -> None:
    service = Service()
    service.start(part("one"))
    service.shop.decide("r", lambda run: advance(run, service.clock.now()))
    (effect,) = next_effects(service.run)
    taken = [PlaceHolder(run_id=run_id, project_id="p") for run_id in ("seen", "seen", "hidden")]
    state = EffectState(effect_id=effect.id, state="waits_for_place", held_by=taken)
    found = explain(service.run, held(state), lambda run_id: run_id != "hidden")
    (shown,) = found.effects
    assert (shown.state, [place.run_id for place in shown.held_by], shown.held_by_others) == (
        "waits_for_place",
        ["seen", "seen"],
        1,
    )
    (wait,) = found.waits
    assert "run seen of project p (2 of them), 1 more by runs of others" in wait.what
    assert "hidden" not in wait.what


def test_a_child_that_is_paused_waits_for_a_person_and_not_for_the_driver() -> None:
    service = Service()
    service.start(part("one"))
    service.shop.decide("r", lambda run: advance(run, service.clock.now()))
    service.command("p", "pause", 1)
    while service.shop.decide("r", lambda run: advance(run, service.clock.now())):
        pass
    pause = next(effect for effect in next_effects(service.run) if isinstance(effect, PauseWorker))
    carry_out(pause, service.shop)
    found = explain(service.run, held())
    assert [effect.state for effect in found.effects] == ["waits_for_person"]
    assert who(found) == ["person"]


def test_a_run_that_nobody_drives_says_so() -> None:
    service = Service()
    service.start(part("one"))
    for holder in (None, held(alive=False)):
        (wait,) = explain(service.run, holder).waits
        assert "No live process" in wait.what


def test_a_run_that_cannot_be_driven_at_all_shows_why() -> None:
    service = Service()
    service.start(part("one"))
    state = EffectState(effect_id="r/drive", state="waits_for_next_try", failures=1, last_error="Undecodable: 7")
    first = explain(service.run, held(state)).effects[0]
    assert (first.kind, first.last_error) == ("Drive", "Undecodable: 7")


def test_at_the_gate_a_person_is_waited_for_and_afterwards_nobody() -> None:
    service = Service()
    service.start(part("one"))
    service.drive()
    found = explain(service.run, held())
    (wait,) = found.waits
    assert (wait.who, wait.request) == ("person", "POST /api/runs/r/assembly/review")
    service.approve()
    service.drive()
    assert who(explain(service.run, held())) == ["nobody"]


def test_after_a_merge_that_failed_the_files_the_kept_branch_and_the_way_out_are_said() -> None:
    service = Service()
    service.start(part("one"))
    service.drive()
    service.approve()
    service.shop.decide("r", lambda run: review.fail_merge(run, ["a.txt"]))
    service.drive()
    assert service.run.closed
    (wait,) = explain(service.run, held()).waits
    assert (wait.who, wait.request) == ("person", "POST /api/runs/r/retry")
    assert "a.txt" in wait.what
    assert f"the branch {service.run.assembly.branch}" in wait.what
    (again,) = explain(service.run, held(), retried_as="s").waits
    assert (again.who, again.request) == ("nobody", None)
    assert "run s" in again.what


def test_a_run_that_failed_says_why_and_that_it_can_be_tried_again() -> None:
    service = Service()
    service.start(part("one"))
    service.shop.decide("r", lambda run: advance(run, service.clock.now()))
    child = next(iter(service.run.children))
    words = "session/new: Authentication required"
    service.shop.decide(
        "r",
        lambda run: child_ends.fail_child(
            run, child, service.clock.now(), error_code="agent_refused", message=words, retryable=False
        ),
    )
    while service.shop.decide("r", lambda run: advance(run, service.clock.now())):
        pass
    (blocked,) = explain(service.run, held()).waits
    assert f"agent_refused: {words}" in blocked.what
    service.shop.decide("r", lambda run: review.fail_run(run, error_code="x", message="", retryable=True))
    service.drive()
    (wait,) = explain(service.run, held()).waits
    assert (wait.who, wait.request) == ("person", "POST /api/runs/r/retry")
    assert words in wait.what
