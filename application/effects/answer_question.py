"""Let the coordinator answer a child's question by itself, from the goal and the child's part of it."""

from uuid import NAMESPACE_OID, uuid5

from ...domain.facts.asking import MAX_ANSWER_BYTES
from ...domain.facts.run import CoordinatorRun
from ...domain.process.effects import AnswerQuestion
from ...domain.work import agent_requests, answers
from ...domain.work.answers import NoPendingQuestion
from ...domain.work.prompts import answer_prompt
from ...domain.work.turns import Overtaken
from ..ports.agents import AgentFailed
from .ask_coordinator import CoordinatorQuestion, ask_coordinator
from .workshop import Closing, Workshop


def answer_question(effect: AnswerQuestion, shop: Workshop) -> None:
    """
    On return the question has an answer, the coordinator's or that of a person who was faster, or the log says that the
    coordinator's agent could not answer. The question waits for a person all the while.
    """
    run = shop.runs.run(effect.run_id)
    try:
        words = ask_coordinator(run, _question(run, effect), shop)
        if not words.strip():
            raise AgentFailed("agent_turn_failed", "the agent's answer is empty", retryable=True)
        shop.decide(effect.run_id, lambda found: answers.answer_by_autopilot(found, effect.request_id, _cut(words)))
    except (NoPendingQuestion, Overtaken):
        return
    except AgentFailed as failed:
        if shop.leaves(effect.run_id):
            raise Closing from failed
        if agent_requests.is_settled(shop.runs.run(effect.run_id), effect.child_run_id, effect.request_id):
            # A person was faster, so the agent was ended.
            return
        _fail(effect, failed, shop)


def _fail(effect: AnswerQuestion, failed: AgentFailed, shop: Workshop) -> None:
    code, message = failed.code, str(failed)
    try:
        shop.decide(effect.run_id, lambda found: answers.fail_autopilot(found, effect.request_id, code, message))
    except NoPendingQuestion:
        return


def _question(run: CoordinatorRun, effect: AnswerQuestion) -> CoordinatorQuestion:
    child, request = answers.find_request(run, effect.request_id)
    subtask = run.plan.subtasks.get(child.subtask_id) if run.plan else None
    if request.state != "pending" or subtask is None:
        raise NoPendingQuestion
    turn_id = str(uuid5(NAMESPACE_OID, effect.id))
    return CoordinatorQuestion(
        name=answering_name(child.run_id),
        turn_id=turn_id,
        prompt=answer_prompt(run, subtask, turn_id, str(request.subject)),
        worktree=answering_name(child.run_id),
        branch=answering_branch(child.run_id),
        shows=child.head or run.base,
    )


def answering_name(child_run_id: str) -> str:
    """Return what the process and the worktree are called in which a child's questions are answered."""
    return f"{child_run_id}-autopilot"


def answering_branch(child_run_id: str) -> str:
    """Return the branch of that worktree."""
    return f"steersman/autopilot/{child_run_id}"


def _cut(words: str) -> str:
    return words.strip().encode(errors="replace")[:MAX_ANSWER_BYTES].decode(errors="ignore")
