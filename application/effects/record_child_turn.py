"""The observer of a child's turn: its first sign of work is a proof, and what its agent asks is asked on the log."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...domain.event import Draft
from ...domain.facts.child_run import ChildRun, Turn
from ...domain.facts.run import CoordinatorRun
from ...domain.work import agent_requests, turns
from ...domain.work.turns import Overtaken
from ..ports.agents import AgentUpdate, PermissionAsked
from .record_turn import TurnRecorder, output_bytes
from .tool_call import tool_call
from .workshop import Workshop

#: How long an agent waits for an answer to a question before it goes on without; an approval waits for ever.
QUESTION_SECONDS = 1_800.0
APPROVAL_SECONDS = 10 * 365 * 86_400.0


#: What decides about a request: its id, and what is stored of it.
Asking: TypeAlias = Callable[[CoordinatorRun], tuple[str, Sequence[Draft]]]


class ChildTurnRecorder(TurnRecorder):
    """Records a child's turn, and brings answers back that anybody gave anywhere."""

    def __init__(self, shop: Workshop, root: str, child: ChildRun, turn: Turn) -> None:
        used = output_bytes(shop.runs, child.run_id)
        super().__init__(
            shop.runs,
            shop.tenure,
            root,
            child.run_id,
            turn.turn_id,
            child.model_id,
            used,
            shop.turn_bytes,
            shop.timings.hold_words,
        )
        self._shop = shop
        self._child = child.run_id
        self._of = root
        self._said = turn.started

    def update(self, update: AgentUpdate) -> None:
        """Take a report; the first one is the proof that the agent works on the turn."""
        if update.kind != "stderr":
            self._first_sign()
        super().update(update)

    def permission(self, asked: PermissionAsked) -> bool:
        """Block until the log says whether the tool may be used; an answer given before a crash counts."""
        call = tool_call(asked, self._turn_id, self._text)
        return self._ask(lambda run: agent_requests.ask_tool(run, self._child, call), APPROVAL_SECONDS) == "approved"

    def question(self, request_id: str, question: str) -> str | None:
        """Block until the log has an answer, or the time is over."""
        state = self._ask(lambda run: agent_requests.ask_question(run, self._child, question), QUESTION_SECONDS)
        return self._answer if state == "answered" else None

    def _first_sign(self) -> None:
        if not self._said:
            isolation = self._shop.agents.isolation
            self._shop.decide(self._of, lambda run: turns.start_turn(run, self._child, isolation))
            self._said = True

    def _ask(self, asking: Asking, timeout_seconds: float) -> str:
        """Put a request on the log, wait for what becomes of it, and take that to the agent once."""
        self._answer: str | None = None
        asked: list[str] = []

        def decision(run: CoordinatorRun) -> Sequence[Draft]:
            request_id, drafts = asking(run)
            asked[:] = [request_id]
            return drafts

        # Waiting for a person is no stall.
        self.last_sign = None
        try:
            self._first_sign()
            self._shop.decide(self._of, decision)
            (request_id,) = asked
            return self._await(request_id, timeout_seconds)
        except Overtaken:
            # The run or the turn is over; the agent is being ended with it.
            return "over"
        finally:
            self.touch()

    def _await(self, request_id: str, timeout_seconds: float) -> str:
        child, until = self._child, time.monotonic() + timeout_seconds
        # While the coordinator's own agent is at it, that one works in this one's place.
        self._shop.wait_until(
            self._of,
            lambda run: self._is_settled(run, request_id) or agent_requests.waits_for_person(run, child, request_id),
            timeout_seconds,
        )
        if not self._shop.wait_until(self._of, lambda run: self._is_settled(run, request_id), 0):
            self._shop.rest(child)
        if not self._shop.wait_until(self._of, lambda run: self._is_settled(run, request_id), until - time.monotonic()):
            self._shop.decide(self._of, lambda run: agent_requests.time_out_question(run, child, request_id))
        self._shop.go_on(self._of, child, self._still_asked)
        # If we crash before the agent has the answer, it asks anew, and is asked about anew.
        self._shop.decide(self._of, lambda run: agent_requests.deliver(run, child, request_id))
        request = self._shop.runs.run(self._of).children[child].requests[request_id]
        self._answer = request.answer.value if request.answer else None
        return request.state

    def _is_settled(self, run: CoordinatorRun, request_id: str) -> bool:
        """Whether there is an answer, or nobody to take it: the agent may have died while it waited."""
        return self.is_closed or agent_requests.is_settled(run, self._child, request_id)

    def _still_asked(self) -> None:
        if self.is_closed or agent_requests.is_over(self._shop.runs.run(self._of), self._child):
            raise Overtaken
