"""Have an automated gate look at the assembled work: a reviewer agent reads it, or a command builds and tests it."""

from pathlib import Path

from ...domain.facts.gates import GateSpec, Verdict, read_verdict
from ...domain.facts.run import CoordinatorRun
from ...domain.git import Commit
from ...domain.process.effects import RunGate
from ...domain.runs import review
from ...domain.work import prompts
from ...domain.work.turns import Overtaken
from ..looking.touched_files import touched_files
from ..ports.agents import AgentFailed, SessionRequest
from .coordinator_turn import coordinator_turn
from .workshop import Closing, Workshop

MAX_DIFF_BYTES = 256 * 1024
UNCHANGED = Verdict(outcome="passed", feedback="There is no change to look at.")


class GateUnable(Exception):
    """The gate could not do its work; that says nothing about what it was to look at."""


def run_gate(effect: RunGate, shop: Workshop) -> None:
    """On return the gate has a verdict about the assembled tree, or the run is parked because it could not have one."""
    run = shop.runs.run(effect.run_id)
    try:
        _, assembly = review.at_gate(run, effect.kind, effect.id)
        spec = next((spec for spec in run.gates if spec.kind == effect.kind), None)
        if spec is None or assembly.head is None:
            raise Overtaken
        verdict = _look(effect, run, spec, assembly.head, shop) if assembly.has_changes else UNCHANGED
        touched = touched_files(run, shop.repositories)
        shop.decide(effect.run_id, lambda found: review.complete_gate(found, effect.kind, effect.id, verdict, touched))
    except GateUnable as unable:
        reason = str(unable)
        _park(effect, reason, shop)
    except AgentFailed as failed:
        if shop.leaves(effect.run_id):
            raise Closing from failed
        _park(effect, failed.code, shop)
    except Overtaken:
        return


def _park(effect: RunGate, reason: str, shop: Workshop) -> None:
    try:
        shop.decide(effect.run_id, lambda run: review.block_gate(run, effect.kind, effect.id, reason))
    except Overtaken:
        return


def abandon_gate(effect: RunGate, shop: Workshop) -> None:
    """On return nothing that had begun to look for this gate is alive."""
    name = _name(effect)
    shop.kill(name)
    shop.commands.kill(shop.worktree(name))


def _name(effect: RunGate) -> str:
    """Return what the gate's process and worktree are called."""
    return f"{effect.run_id}-{effect.kind}"


def _look(effect: RunGate, run: CoordinatorRun, spec: GateSpec, head: Commit, shop: Workshop) -> Verdict:
    worktree, branch = shop.worktree(_name(effect)), f"steersman/gate/{run.run_id}/{spec.kind}"
    # Fresh for each look: what an earlier one left behind must not count. Nobody takes anything from this workplace.
    shop.repositories.make_workplace(shop.repository(run), worktree, head.commit)
    try:
        # Git can take long, and whoever abandons the gate meanwhile finds nothing to end yet.
        review.at_gate(shop.runs.run(run.run_id), effect.kind, effect.id)
        if spec.kind == "build-test":
            return _build(run, spec, worktree, shop)
        return _review(effect, run, spec, head, shop)
    finally:
        shop.repositories.remove_workplace(shop.repository(run), worktree, branch)


def _build(run: CoordinatorRun, spec: GateSpec, worktree: Path, shop: Workshop) -> Verdict:
    result = shop.commands.run(spec.command, worktree, spec.timeout_seconds, shop.lent(run))
    if result.state == "interrupted" and shop.leaves(run.run_id):
        raise Closing
    if result.state != "exited":
        raise GateUnable(result.state)
    if result.exit_code == 0:
        return Verdict(outcome="passed")
    words = " ".join(spec.command)
    return Verdict(outcome="revise", feedback=f"`{words}` ended with {result.exit_code}:\n\n{result.output}")


def _review(effect: RunGate, run: CoordinatorRun, spec: GateSpec, head: Commit, shop: Workshop) -> Verdict:
    diff = shop.repositories.diff(shop.repository(run), run.base.commit, head.commit, MAX_DIFF_BYTES)
    turn_id = f"{spec.kind}-{head.tree}"
    model_id = spec.model_id or run.model_id
    request = SessionRequest(
        model_id=model_id, run_id=_name(effect), cwd=shop.worktree(_name(effect)), reads=shop.lent(run)
    )
    with coordinator_turn(run, turn_id, request, shop) as ask:
        verdict = read_verdict(ask(prompts.review_prompt(run, spec.kind, turn_id, diff)))
        if verdict is None:
            verdict = read_verdict(ask(prompts.verdict_prompt(turn_id)))
    # A reviewer that cannot be understood has not said that the work is good.
    return verdict or Verdict(outcome="red", feedback="unparseable_after_reask: the reviewer gave no verdict.")
