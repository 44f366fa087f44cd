"""End a child's turn early, because a redirect has something else for its agent to do."""

from ...domain.facts.child_run import ENDED
from ...domain.facts.run import CoordinatorRun
from ...domain.process.effects import EndTurn
from .workshop import Workshop


def end_turn(effect: EndTurn, shop: Workshop) -> None:
    """On return the turn has ended, or is driven by nobody here: then the child's own work ends it when it comes to it."""

    def over(run: CoordinatorRun) -> bool:
        child = run.children[effect.child_run_id]
        turn = child.turn
        return child.status in ENDED or turn is None or turn.turn_id != effect.turn_id or turn.stop_reason is not None

    def at_work(run: CoordinatorRun) -> bool:
        return over(run) or shop.session_of(effect.child_run_id) is not None

    # An agent that waits for its place, or is just being started, is waited for.
    if not shop.wait_until(effect.run_id, at_work, shop.timings.end_turn):
        return
    session = shop.session_of(effect.child_run_id)
    if session is None:
        return
    session.cancel()
    if not shop.wait_until(effect.run_id, over, shop.timings.end_turn):
        session.kill()
        shop.wait_until(effect.run_id, over, shop.timings.end_turn)
