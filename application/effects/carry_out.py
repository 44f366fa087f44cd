"""Which effect is carried out where."""

from ...domain.process.effects import (
    AnswerQuestion,
    AssembleChildren,
    ClearAway,
    DraftOutcome,
    Effect,
    EndTurn,
    EndWorkers,
    EraseRun,
    MakePlan,
    MergeAssembly,
    PauseWorker,
    ResumeWorker,
    RunGate,
    WorkOnSubtask,
)
from .answer_question import answer_question, answering_name
from .assemble_children import assemble_children
from .clear_away import clear_away
from .draft_outcome import draft_outcome
from .end_turn import end_turn
from .erase_run import erase_run
from .make_plan import make_plan
from .merge_assembly import merge_assembly
from .pause_worker import end_workers, pause_worker, resume_worker
from .run_gate import abandon_gate, run_gate
from .work_on_subtask import work_on_subtask
from .workshop import Workshop


def carry_out(effect: Effect, shop: Workshop) -> None:
    """On return the effect is proved by a fact, or no longer called for. Raises what stood in the way for now."""
    match effect:
        case DraftOutcome():
            draft_outcome(effect, shop)
        case MakePlan():
            make_plan(effect, shop)
        case WorkOnSubtask():
            work_on_subtask(effect, shop)
        case AnswerQuestion():
            answer_question(effect, shop)
        case AssembleChildren():
            assemble_children(effect, shop)
        case RunGate():
            run_gate(effect, shop)
        case MergeAssembly():
            merge_assembly(effect, shop)
        case EndTurn():
            end_turn(effect, shop)
        case PauseWorker():
            pause_worker(effect, shop)
        case ResumeWorker():
            resume_worker(effect, shop)
        case EndWorkers():
            end_workers(effect, shop)
        case ClearAway():
            clear_away(effect, shop)
        case EraseRun():
            erase_run(effect, shop)
        case _:
            raise TypeError(f"nobody carries out a {type(effect).__name__}")


def needs_agent(effect: Effect) -> bool:
    """Return whether the effect is an agent's work by itself, and not for another one that waits meanwhile."""
    return isinstance(effect, DraftOutcome | MakePlan | WorkOnSubtask | RunGate)


def abandon(effect: Effect, shop: Workshop) -> None:
    """Cut short an effect that is under way and no longer called for."""
    match effect:
        case WorkOnSubtask():
            shop.kill(effect.child_run_id)
        case DraftOutcome() | MakePlan():
            shop.kill(effect.run_id)
        case AnswerQuestion():
            shop.kill(answering_name(effect.child_run_id))
        case RunGate():
            abandon_gate(effect, shop)
        case _:
            # Work in git is short and harmless to finish.
            return
