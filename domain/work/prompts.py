"""What agents are asked, word for word."""

import hashlib
from collections.abc import Sequence

from ..facts.conflicts import Conflict
from ..facts.directive import SteeringDirective
from ..facts.line import conflicts_met, conflicts_over
from ..facts.outcome_spec import OutcomeDraft
from ..facts.run import CoordinatorRun
from ..facts.work_plan import Subtask
from .what_happened import Said, begun_before, where_it_stands, why_it_stood_still

#: Every prompt names its turn in such a line, so that an agent's own history shows what it was asked.
TURN_LINE = "Steersman-Turn: "


#: The line by which a prompt says what its agent is, where it is no worker.
ROLE_LINE = "Steersman-Role: "


def turn_line(turn_id: str) -> str:
    """Return the line by which a prompt names its turn."""
    return f"{TURN_LINE}{turn_id}"


def digest(prompt: str) -> str:
    """Return the digest under which a prompt is known."""
    return "sha256:" + hashlib.sha256(prompt.encode(errors="replace")).hexdigest()


def task_prompt(
    run: CoordinatorRun,
    subtask: Subtask,
    turn_id: str,
    rounds: Sequence[Said] = (),
    waiting: Sequence[SteeringDirective] = (),
    *,
    done: Sequence[Said] = (),
    lost: str | None = None,
) -> str:
    """
    Return a prompt for an agent that knows nothing of a subtask: what was asked, with every earlier round of feedback
    exactly once; what came of it so far, and why that ended; and what is there now.

    Of the earlier rounds *rounds* are to be heeded, and *done* is in the work already. *lost* is what this turn has lost.
    """
    parts = [
        turn_line(turn_id),
        f"You are {subtask.assigned_agent}. You work on one part of a larger goal, in a git worktree of your own.",
    ]
    charter = run.plan.charters.get(subtask.assigned_agent) if run.plan else None
    if charter is not None:
        parts.append(f"# Your charter\n\n{charter}".rstrip())
    parts.append(f"# The goal\n\n{run.goal}")
    made = _made_before(run, subtask)
    if made:
        parts.append(f"# Already done, and in your worktree\n\n{made}")
    if before := begun_before(run, subtask, rounds):
        parts.append(f"# Begun before you\n\n{before}")
    if why := why_it_stood_still(run, subtask, rounds):
        parts.append(f"# Why the run stood still\n\n{why}")
    parts.extend(_conflicts(run, subtask, conflicts_met(run, subtask)))
    parts.append(
        "# Rules\n\nChange files in the working directory only. Do not run git: your changes are committed for you. "
        "If something that you need is missing, say so and stop; do not invent it."
    )
    if lost is not None:
        parts.append(f"# What is lost\n\n{_LOST.get(lost, _LOST['session'])} {_AT_LAST_COMMIT}")
    parts.append(f"# Your part: {subtask.title}\n\n{subtask.scope}")
    if done:
        parts.append(f"# Feedback that the work has already\n\n{_KEEP}\n\n" + _listed(done))
    if rounds:
        parts.append("# Feedback on earlier attempts\n\n" + _listed(rounds))
    parts.extend(_said(directive) for directive in waiting)
    return "\n\n".join(parts) + "\n"


def revision_prompt(
    run: CoordinatorRun,
    subtask: Subtask,
    turn_id: str,
    before: Sequence[SteeringDirective],
    waiting: Sequence[SteeringDirective],
    *,
    rebuilt: bool = False,
) -> str:
    """Return the prompt that takes corrections to an agent that has worked already."""
    parts = [turn_line(turn_id)]
    conflicts = list(conflicts_met(run, subtask)) if rebuilt else []
    if any(not directive.direct for directive in waiting):
        # It is the assembled work that is to be changed, so its authors hear what became of their part in it.
        conflicts += conflicts_over(run, subtask)
    if rebuilt:
        parts.append(
            "What your part builds on has been changed since you finished, and your worktree holds the new version. "
            "Look at your part again and bring it in line."
        )
    if (child := run.children.get(subtask.child_run_id or "")) is not None and child.turn is not None:
        parts.append(where_it_stands(child.turn, waiting))
    parts.extend(_conflicts(run, subtask, conflicts))
    if before:
        parts.append("# Earlier feedback, which still holds\n\n" + _listed(before))
    parts.extend(_said(directive) for directive in waiting)
    return "\n\n".join(parts) + "\n"


def continue_prompt(turn_id: str) -> str:
    """Return the prompt for a turn that was cut off after the agent had been asked."""
    return (
        f"{turn_line(turn_id)}\n\nYou were interrupted. Continue exactly where you stopped: "
        "do not repeat what is done, and finish what is left. The program that you worked in has ended, by no fault of "
        "yours; what you had been asked still holds, and your working directory is as you left it.\n"
    )


def plan_prompt(run: CoordinatorRun, turn_id: str, team: str) -> str:
    """Return the prompt that asks the planner to decompose the goal."""
    return (
        f"{turn_line(turn_id)}\n{ROLE_LINE}planner\n\n"
        "Decompose the goal below into at most 12 subtasks that a team can work on in parallel, "
        "each in its own git worktree. Do not change any file. End your answer with one fenced block of JSON: an array "
        'of objects with "title", "scope", "assignedAgent" (a name from the team), "phase" (planning, execution or '
        'validation), "dependsOn" (places in the array, from 0) and "files" (the paths that it will write).\n\n'
        f"# The team\n\n{team}\n\n{agreed(run)}# The goal\n\n{run.goal}\n"
    )


def outcome_prompt(run: CoordinatorRun, turn_id: str) -> str:
    """Return the prompt that asks the writer what the goal means, with everything that was said to earlier drafts."""
    spec = run.outcome_spec
    task = (
        "Say what the goal below means, so that a person can agree to it before a team begins to work. Look at the code, "
        "and do not change any file. End your answer with one fenced block of JSON: an object with "
        '"desiredOutcome" (what is true when the goal is reached), "scope" (what is touched, and what is not), '
        '"assumptions" (what you take for granted) and, only if you need to know more, "clarifyingQuestions"; '
        "each is a text."
    )
    parts = [f"{turn_line(turn_id)}\n{ROLE_LINE}outcome-writer", task, f"# The goal\n\n{run.goal}"]
    if spec is not None and spec.draft is not None:
        parts.append(f"# Your last draft\n\n{_drafted(spec.draft)}")
    if spec is not None and spec.feedback:
        said = "\n\n".join(f"{n}. {words}" for n, words in enumerate(spec.feedback, 1))
        parts.append(f"# What was said to your drafts, the last word last\n\n{said}")
    return "\n\n".join(parts) + "\n"


def answer_prompt(run: CoordinatorRun, subtask: Subtask, turn_id: str, question: str) -> str:
    """Return the prompt that asks the coordinator's agent to answer for the people who gave the goal."""
    return (
        f"{turn_line(turn_id)}\n{ROLE_LINE}autopilot\n\n"
        f"{subtask.assigned_agent} works on one part of the goal below and asks you something. Answer it for the people "
        "who gave the goal: decide, in a few words, what serves it best. Look at the code if you need to, and do not "
        "change any file. Your whole answer is handed on as it is.\n\n"
        f"{agreed(run)}# The goal\n\n{run.goal}\n\n# The part: {subtask.title}\n\n{subtask.scope}\n\n"
        f"# The question\n\n{question}\n"
    )


def agreed(run: CoordinatorRun) -> str:
    """Return what was agreed on about a run's goal, as a part of a prompt; empty if nothing was."""
    spec = run.outcome_spec
    if spec is None or spec.draft is None or spec.status != "confirmed":
        return ""
    return f"# What the goal means, as it was agreed\n\n{_drafted(spec.draft)}\n\n"


def _drafted(draft: OutcomeDraft) -> str:
    parts = [f"Desired outcome: {draft.desired_outcome}", f"Scope: {draft.scope}", f"Assumptions: {draft.assumptions}"]
    if draft.clarifying_questions is not None:
        parts.append(f"Questions that were left open: {draft.clarifying_questions}")
    return "\n\n".join(parts)


_REVIEWS = {
    "rai": "Review the change below for harm: unsafe, abusive, discriminating or unlawful behaviour, leaked secrets.",
    "rubberduck": "Review the change below as a critical colleague: is it right, complete and simple?",
}
_VERDICTS = (
    "End your answer with a line `TARGET_FILES: a, b` if the change must be revised in certain files, and then with the "
    "last line `VERDICT: GREEN`, `VERDICT: YELLOW`, `VERDICT: REVISE` or `VERDICT: RED`."
)


def review_prompt(run: CoordinatorRun, kind: str, turn_id: str, diff: str) -> str:
    """Return the prompt that asks a reviewer for a verdict on the assembled work."""
    return (
        f"{turn_line(turn_id)}\n{ROLE_LINE}reviewer\n\n{_REVIEWS[kind]} Do not change any file. {_VERDICTS}\n\n"
        f"# The goal\n\n{run.goal}\n\n# The change\n\n~~~~diff\n{diff}\n~~~~\n"
    )


def verdict_prompt(turn_id: str) -> str:
    """Return the prompt that asks once more for a verdict that was not given."""
    return f"{turn_line(turn_id)}\n\nYour answer did not end with a verdict. {_VERDICTS}\n"


def _made_before(run: CoordinatorRun, subtask: Subtask) -> str:
    if run.plan is None:
        return ""
    producers = (run.plan.subtasks[needed] for needed in run.plan.producers(subtask.subtask_id))
    return "\n".join(f"- {producer.title}" for producer in producers)


_KEEP = (
    "Those before you were told this, and have done it in what is in your worktree. Nothing of it is to be done once more; "
    "see to it that it stays so."
)
_LOST = {
    "vanished": "The working directory of this part was deleted while it was worked on.",
    "replaced": "Something else was put in the place of this part's working directory while it was worked on.",
    "unfinished": "The working directory of this part was found half made.",
    "cleared": "The run had ended, so the working directory of this part was cleared away; now it goes on.",
    "session": "Your part was begun before, and the session in which that was done is gone.",
}
_AT_LAST_COMMIT = (
    "So it was made anew from the last recorded state of this part. Files that were written after that are gone; nobody "
    "has deleted them on purpose. Look at what is there, and do what is missing."
)


def _conflicts(run: CoordinatorRun, subtask: Subtask, conflicts: Sequence[Conflict]) -> list[str]:
    if not conflicts:
        return []
    lines = [
        f"- `{path}`: {_whose(run, subtask, conflict)} stands; {_other(conflict, str(path))}"
        for conflict in dict.fromkeys(conflicts)
        for path in conflict.paths
    ]
    return [
        "# Changed in two places\n\nThese files were changed in the same places by two sides at once. Only one version "
        "of each stands, the other one is kept by git. See to it, as far as it is about your part, that nothing is lost "
        "that is needed.\n\n" + "\n".join(lines)
    ]


def _whose(run: CoordinatorRun, subtask: Subtask, conflict: Conflict) -> str:
    if conflict.subtask_id == subtask.subtask_id:
        return "the version of your part"
    other = run.plan.subtasks.get(conflict.subtask_id or 0) if run.plan else None
    return f"the version of the part {other.title!s}" if other else f"the version of {conflict.branch}"


def _other(conflict: Conflict, path: str) -> str:
    if conflict.replaced is None:
        return f"the other one is kept at {conflict.ref}"
    return f"`git show {conflict.replaced}:{path}` (the only use of git that you need) prints the other one"


_OPENINGS = {
    "send": "# A message for you",
    "guidance": "# Guidance",
    "amend": "# An addition to your task",
    "redirect": "# A new direction, which replaces what you were doing",
    "resume": "# You were paused. Continue exactly where you stopped: do not repeat what is done",
}


def _said(directive: SteeringDirective) -> str:
    opening = _OPENINGS.get(directive.verb, "# Changes are requested")
    if not directive.direct:
        opening = "# Changes are requested"
    return f"{opening}\n\n{directive.feedback}".rstrip()


def _listed(rounds: Sequence[Said]) -> str:
    return "\n\n".join(f"{n}. ({found.source}) {found.feedback}" for n, found in enumerate(rounds, 1))
