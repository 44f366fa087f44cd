"""Who does a rejected subtask over: another author who fits, or the same one when there is no other."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from ..facts.work_plan import Subtask
from ..projects.team import ROLES, Member

_WORD = re.compile(r"\w+")


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """The authors chosen for rejected subtasks. Empty: everybody keeps theirs, because one of them has no other."""

    chosen: Mapping[int, Member]


def rotate(subtasks: Sequence[Subtask], team: Sequence[Member]) -> Rotation:
    """Return another author for every subtask, or for none: a lockout that strands one subtask locks nobody out."""
    chosen: dict[int, Member] = {}
    for subtask in subtasks:
        member = next_author(subtask, team)
        if member is None:
            return Rotation(chosen={})
        chosen[subtask.subtask_id] = member
    return Rotation(chosen=chosen)


def next_author(subtask: Subtask, team: Sequence[Member]) -> Member | None:
    """Return the member who fits the subtask best, never its author nor one whose work on it was rejected."""
    out = subtask.locked_out | {subtask.assigned_agent}
    scored = [(score(subtask, member), member) for member in team if member.active and member.name not in out]
    fitting = [(points, member) for points, member in scored if points > 0]
    # Ties go to whoever joined first: max keeps the first of equals.
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def score(subtask: Subtask, member: Member) -> int:
    """Return how well a member fits: words in common, and what the phase calls for."""
    role = ROLES.get(member.role_id)
    about = f"{member.role_id} {member.role_title} {role.summary if role else ''}"
    points = 10 * len(_words(f"{subtask.title} {subtask.scope}") & _words(about))
    title = member.role_title.casefold()
    if subtask.phase == "validation" and any(word in title for word in ("review", "qa", "quality", "test")):
        points += 15
    if subtask.phase == "planning" and any(word in title for word in ("lead", "architect")):
        points += 15
    return points


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in _WORD.findall(text.casefold()) if len(word) > 2)
