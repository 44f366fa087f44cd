"""
The one policy for every way in which a child's turn can end badly: what is kept of it, how often the same is tried,
what whoever tries it is told, and when a person is asked.
"""

from typing import Literal

import msgspec

Kept = Literal["half-done work", "nothing"]
Then = Literal["start afresh", "ask a person"]

STALLED = "agent_stall_timeout"
CANCELLED = "agent_turn_cancelled"
INTERRUPTED = "agent_interrupted_too_often"
UNCOMMITTED = "commit_failed_persistent"
BRANCH_MOVED = "branch_moved"


class Way(msgspec.Struct, frozen=True):
    """
    What follows when a turn ended like this.

    *said* is how it is told to the next attempt; *kept*, what is committed of the work that it left in its workplace,
    for whoever goes on from there. To *start afresh* is within the subtask's recovery budget: past it a person is asked.
    """

    said: str
    kept: Kept = "half-done work"
    then: Then = "start afresh"
    #: What the redispatch gives as its reason.
    reason: str = ""


#: By the error code that the child run ends with.
WAYS: dict[str, Way] = {
    "agent_exited": Way("Its agent's program ended in the middle of it", reason="exit_redispatch"),
    "agent_protocol_error": Way("Its agent said something that is no ACP", reason="protocol_error_redispatch"),
    "agent_turn_failed": Way("Its agent ended its turn with an error", reason="turn_error_redispatch"),
    "agent_start_timeout": Way("Its agent was not ready in time", reason="start_timeout_redispatch"),
    STALLED: Way("Its agent showed no sign of work for too long", reason="stall_redispatch"),
    CANCELLED: Way(
        "Its agent gave its turn up as cancelled, which nobody had asked for", reason="cancelled_redispatch"
    ),
    "agent_turn_limit": Way("Its agent came to the limit of what it may do in a turn", reason="turn_limit_redispatch"),
    "agent_output_limit": Way(
        "Its agent reported more than it may in a turn, and went on", reason="output_limit_redispatch"
    ),
    # What is too big for its place is not taken from there into the project either.
    "agent_disk_limit": Way("Its agent wrote more than it may", kept="nothing", reason="disk_limit_redispatch"),
    # The same would come of it again.
    "agent_not_installed": Way("Its agent is not installed", then="ask a person"),
    "agent_not_configured": Way("Its agent lacks what agents.toml says that it gets", then="ask a person"),
    "agent_login_required": Way("Its agent let nobody in without a login", then="ask a person"),
    "agent_refused": Way("Its agent refused to do it", then="ask a person"),
    INTERRUPTED: Way("It was interrupted too often", then="ask a person"),
    # Nothing can be kept, or nobody could say what would be.
    "agent_processes_unruly": Way("Its agent's processes could not be ended", kept="nothing", then="ask a person"),
    UNCOMMITTED: Way("Its work could not be committed", kept="nothing", then="ask a person"),
    BRANCH_MOVED: Way("Somebody else moved its branch", kept="nothing", then="ask a person"),
}
#: Everything else: a workplace that could not be made, a box that does not work, a code that an adapter has of its own.
OTHER = Way("It could not be done here", then="ask a person")

#: The reasons for which an agent may end a turn that is no end of the work, and the codes that they are.
STOP_REASONS = {
    "cancelled": CANCELLED,
    "refusal": "agent_refused",
    "max_tokens": "agent_turn_limit",
    "max_turn_requests": "agent_turn_limit",
}
FINISHED = "end_turn"


class BadEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a child's turn ended, when it ended badly."""

    code: str
    #: In words, with the agent's last ones.
    message: str
    retryable: bool = True
    #: What the agent gave as its reason, if it ended the turn itself.
    stop_reason: str | None = None
    stall_seconds: int | None = None

    @property
    def way(self) -> Way:
        """What follows."""
        return way_of(self.code)


def way_of(error_code: str) -> Way:
    """Return what follows when a turn ends with this code."""
    return WAYS.get(error_code, OTHER)


def code_of(stop_reason: str) -> str | None:
    """Return the code of a turn that its agent ended for this reason; None if that is how a turn should end."""
    return None if stop_reason == FINISHED else STOP_REASONS.get(stop_reason, "agent_protocol_error")
