"""What whoever is asked next is told of what happened: what came of a part so far, why that ended, and what is there now."""

from collections.abc import Sequence
from typing import TypeAlias

from ..event import Text
from ..facts.bad_ends import way_of
from ..facts.child_run import ChildRun, Turn
from ..facts.directive import SteeringDirective
from ..facts.line import left_on_branch
from ..facts.run import CoordinatorRun
from ..facts.work_plan import Correction, Subtask
from ..steering.decision_table import MAX_RECOVERY_ATTEMPTS

#: What was said about a part, in this run or in an earlier one of the same plan.
Said: TypeAlias = SteeringDirective | Correction

_GO_ON = "What was committed is in your worktree: go on from it, and leave what is good as it is."


def begun_before(run: CoordinatorRun, subtask: Subtask, rounds: Sequence[Said]) -> str:
    """Say what came of the subtask so far, why that ended, and what of it is there now; empty if it was never begun."""
    before = run.children.get(subtask.prior_child_run_id or "")
    is_left = left_on_branch(run, subtask) is not None
    earlier = subtask.earlier
    if before is None and (earlier is None or not earlier.agent_name):
        return f"Somebody has worked on your part before. {_GO_ON}" if is_left else ""
    name = before.agent_name if before else earlier.agent_name if earlier else ""
    when = "" if before else ", in an earlier run of the same plan"
    said = [f"{name} has worked on your part before{when}. {how_it_ended(run, subtask, before, rounds)}"]
    if before is not None and before.failure is not None:
        most = subtask.dispatches + max(0, MAX_RECOVERY_ATTEMPTS - subtask.recovery_attempts)
        said.append(f"Yours is attempt {subtask.dispatches} of {most}; after the last one a person is asked.")
    said.append(_what_is_left(before) if is_left else "Nothing of it is in your worktree.")
    return "\n\n".join(said)


def how_it_ended(run: CoordinatorRun, subtask: Subtask, before: ChildRun | None, rounds: Sequence[Said] = ()) -> str:
    """Return why an author's work on a part came to its end, as whoever goes on from it is told. *rounds* sent it back."""
    if before is None:
        return str(subtask.earlier.ended) if subtask.earlier else ""
    if before.failure is not None:
        code = before.failure.error_code
        quoted = _quoted(before.failure.message)
        return f"{way_of(code).said} ({code})" + (f":\n\n{quoted}" if quoted else ".")
    if before.cancelled is not None:
        return _CANCELLED.get(before.cancelled, f"It was stopped ({before.cancelled}).")
    if run.ended:
        return f"It came to an end, and the run as a whole did not reach its goal ({run.result})."
    newest = rounds[-1] if rounds else None
    if newest is None or (isinstance(newest, SteeringDirective) and newest.block is not None):
        return "It came to an end, and is to be done once more."
    return f"It came to an end, and was sent back ({newest.source})."


_CANCELLED = {
    "base_conflict": "What it builds on was changed in the same places, so that its work did not fit any more.",
    "steering_dispatch_fresh": "It was stopped in the middle, because its work was sent back.",
    "steering_abort": "A person ended it (steering_abort).",
    "steering_stop": "A person stopped it (steering_stop).",
}


def why_it_stood_still(run: CoordinatorRun, subtask: Subtask, rounds: Sequence[Said]) -> str:
    """Say what the newest word of a person has set the run going again from; empty if that was nothing."""
    blocks = (said.block for said in reversed(rounds) if isinstance(said, SteeringDirective) and said.block is not None)
    block = next(blocks, None)
    if block is None:
        return ""
    reason = block.reason.rpartition(": ")[2]
    said = [f"{_STOOD_STILL.get(reason, 'It could not go on by itself')} ({reason})."]
    if block.files:
        said.append("These are the files:\n\n" + "\n".join(f"- `{path}`" for path in block.files))
    before = run.children.get(subtask.prior_child_run_id or "")
    own = block.parts.get(subtask.subtask_id)
    if own is not None and (before is None or before.failure is None):
        # How an author failed is told with what came of its work.
        said.append(f"Your part had no result:\n\n{_quoted(own)}")
    return "\n\n".join([*said, "A person has set it going again since, with the last word below."])


_STOOD_STILL = {
    "ineligible_subtasks": "Parts of the plan had ended without a result",
    "merge_conflict": (
        "The assembled work could not be merged into the branch that it is for, which had meanwhile been changed in the "
        "same places. It is brought together with what that branch holds now"
    ),
    "steering_execution_exhausted": "A correction could not be carried out",
}


def where_it_stands(turn: Turn, waiting: Sequence[SteeringDirective]) -> str:
    """Say to an agent that has worked already how its last turn ended, why it is asked again, and what is there."""
    sources = ", ".join(dict.fromkeys(directive.source for directive in waiting if not directive.direct))
    if turn.stop_reason == "cancelled":
        ended = "Your last turn was ended before you had come to an end. What you had done by then is in your worktree."
    else:
        ended = "You had come to the end of your last turn. What you have done is in your worktree."
    return f"{ended} It was sent back ({sources})." if sources else ended


def _quoted(words: Text) -> str:
    """Return somebody's words so that nothing in them is taken for a part of the task."""
    return "\n".join(f"> {line}" for line in str(words).strip().splitlines())


def _what_is_left(before: ChildRun | None) -> str:
    if before is None:
        return _GO_ON
    if before.unfinished:
        return (
            "What was half done is in your worktree, unfinished and checked by nobody. Look at it first, keep what is "
            "good, and do what is missing."
        )
    if before.failure is not None or before.cancelled is not None:
        return f"{_GO_ON} What was done after that is not there."
    return _GO_ON
