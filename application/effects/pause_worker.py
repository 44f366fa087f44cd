"""Stop a child where it stands, and find out what stands there; let it go on; or end it."""

from pathlib import Path

from ...domain.facts.run import CoordinatorRun
from ...domain.process.effects import EndWorkers, PauseWorker, ResumeWorker
from ...domain.work import workers
from ...domain.work.turns import Overtaken
from .workshop import Workshop

PAUSE = "PAUSE"
SHUTDOWN = "SHUTDOWN"


def pause_worker(effect: PauseWorker, shop: Workshop) -> None:
    """On return every process of the child is stopped or gone, and the log holds what its worktree held then."""
    child_id = effect.child_run_id
    session = shop.opened_session_of(child_id)
    if session is not None:
        session.cancel()
        shop.wait_until(effect.run_id, lambda run: _between_turns(run, child_id), shop.timings.pause)
    try:
        # What follows takes turns with a resume, so that neither undoes what the other has stored.
        with shop.halting(child_id) as session:
            run = shop.runs.run(effect.run_id)
            child, directive = run.children[child_id], workers.open_directive(run, effect.directive_id)
            if child.status != "pausing":
                raise Overtaken
            if session is not None:
                session.stop_processes()
            found = shop.repositories.fingerprint(
                shop.repository(run), Path(str(child.worktree_path) or shop.worktree(child_id))
            )
            if child.session_id is not None:
                text = f"task {child_id}\nreceipt {directive.payload_hash}\n{shop.epoch_line(effect.run_id)}"
                shop.signals.write(child.session_id, PAUSE, text)
            shop.decide(effect.run_id, lambda run: workers.confirm_pause(run, effect.directive_id, child_id, found))
    except Overtaken:
        # An abort won: it kills what was stopped here.
        return


def resume_worker(effect: ResumeWorker, shop: Workshop) -> None:
    """On return the child may go on: its processes run again, or its session will be loaded anew."""
    child_id = effect.child_run_id
    try:
        with shop.halting(child_id) as session:
            run = shop.runs.run(effect.run_id)
            child = run.children[child_id]
            workers.open_directive(run, effect.directive_id)
            if child.status != "paused":
                raise Overtaken
            if child.session_id is not None:
                shop.signals.clear(child.session_id, PAUSE)
            if session is not None:
                # Before it is stored: a child that could not be continued is still paused, and continued later.
                session.continue_processes()
            # If we crash here the processes die with us, and the redo finds nothing that is stopped.
            shop.decide(effect.run_id, lambda run: workers.confirm_resume(run, effect.directive_id, child_id))
    except Overtaken:
        return


def end_workers(effect: EndWorkers, shop: Workshop) -> None:
    """On return nothing of the stopped children is alive, and the log says what was killed."""
    try:
        run = shop.runs.run(effect.run_id)
        directive = workers.open_directive(run, effect.directive_id)
        if directive.scope.kind == "run":
            shop.kill(effect.run_id)
        killed: dict[str, tuple[int, ...]] = {}
        for child_id in workers.to_be_ended(run, effect.directive_id):
            session_id = run.children[child_id].session_id
            if session_id is not None:
                text = (
                    f"task {child_id}\nsession {session_id}\nby {directive.created_by}\n"
                    f"receipt {directive.payload_hash}\n{shop.epoch_line(effect.run_id)}"
                    f"reason {directive.reason}\nSave your work and leave.\n"
                )
                shop.signals.write(session_id, SHUTDOWN, text)
                shop.signals.clear(session_id, PAUSE)
            killed[child_id] = shop.kill(child_id)
        shop.decide(effect.run_id, lambda run: workers.confirm_end(run, effect.directive_id, killed, shop.now()))
    except Overtaken:
        # Either somebody else ended them, or one more came to work meanwhile: the next drive of the run tells.
        return


def _between_turns(run: CoordinatorRun, child_id: str) -> bool:
    child = run.children[child_id]
    return child.status != "pausing" or child.turn is None or child.turn.stop_reason is not None
