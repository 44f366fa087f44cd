"""Make a work plan of what a client, or the planner, proposes."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from ..event import Text
from ..facts.work_plan import Dependency, InvalidPlan, MemberCharter, Phase, PlannedSubtask, WorkPlanMade, topological
from ..projects.team import Member

MAX_SUBTASKS = 200
MAX_TITLE_BYTES = 500
MAX_SCOPE_BYTES = 65_536
MAX_FILES = 1_000
MAX_PATH_BYTES = 4_096


class ProposedSubtask(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a plan as a client, or the planner, proposes it. `depends_on` holds places in the list, from 0."""

    title: str
    scope: str = ""
    assigned_agent: str | None = None
    phase: Phase = "execution"
    depends_on: tuple[int, ...] = ()
    files: tuple[str, ...] = ()


_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(ProposedSubtask))


def make_plan(
    work_plan_id: str,
    proposed: Sequence[ProposedSubtask],
    team: Sequence[Member],
    models: Mapping[str, str],
    charters: Mapping[str, str],
) -> WorkPlanMade:
    """
    Number the parts from 1 and assign each to somebody on the team.

    *models* holds the model id of each member, *charters* what each is to be. A part that names nobody goes to the members in turn.

    Raises:
        InvalidPlan: no part, too many, a text over its cap, a stranger, a dangling dependency or a cycle.
    """
    if not 1 <= len(proposed) <= MAX_SUBTASKS:
        raise InvalidPlan(f"A work plan has 1 to {MAX_SUBTASKS} subtasks; this one has {len(proposed)}.")
    names = [member.name for member in team]
    for place, part in enumerate(proposed):
        _check_part(place, part, len(proposed), names)
    topological({place: part.depends_on for place, part in enumerate(proposed)})
    agents = [part.assigned_agent or names[place % len(names)] for place, part in enumerate(proposed)]
    return WorkPlanMade(
        work_plan_id=work_plan_id,
        status="planned",
        subtasks=tuple(
            PlannedSubtask(
                subtask_id=place + 1,
                title=Text(part.title),
                scope=Text(part.scope),
                assigned_agent=agents[place],
                selected_model_id=models[agents[place]],
                phase=part.phase,
                files=tuple(Text(path) for path in part.files),
            )
            for place, part in enumerate(proposed)
        ),
        dependencies=tuple(
            Dependency(subtask_id=place + 1, depends_on_subtask_id=needed + 1)
            for place, part in enumerate(proposed)
            for needed in sorted(set(part.depends_on))
        ),
        charters=tuple(MemberCharter(name=name, content=Text(content)) for name, content in charters.items()),
    )


def _check_part(place: int, part: ProposedSubtask, count: int, names: Sequence[str]) -> None:
    where = f"Subtask {place} of the plan"
    if not part.title.strip() or len(part.title.encode(errors="replace")) > MAX_TITLE_BYTES:
        raise InvalidPlan(f"{where}: `title` must have 1 to {MAX_TITLE_BYTES} bytes and cannot be blank.")
    if any(ord(character) < 32 or ord(character) == 127 for character in part.title):
        # It becomes the first line of a commit message, behind which git and others look for trailers.
        raise InvalidPlan(f"{where}: `title` is one line, without control characters.")
    if len(part.scope.encode(errors="replace")) > MAX_SCOPE_BYTES:
        raise InvalidPlan(f"{where}: `scope` has more than {MAX_SCOPE_BYTES} bytes.")
    if len(part.files) > MAX_FILES or any(len(f.encode(errors="replace")) > MAX_PATH_BYTES for f in part.files):
        raise InvalidPlan(f"{where}: `files` holds at most {MAX_FILES} paths of at most {MAX_PATH_BYTES} bytes.")
    if part.assigned_agent is not None and part.assigned_agent not in names:
        raise InvalidPlan(f"{where}: nobody on the team is called {part.assigned_agent!r}.")
    dangling = [needed for needed in part.depends_on if not 0 <= needed < count]
    if dangling:
        raise InvalidPlan(f"{where} depends on subtask {dangling[0]}, which is not in the plan.")
    if len(set(part.depends_on)) != len(part.depends_on):
        raise InvalidPlan(f"{where} names a subtask twice that it depends on.")


def drop_cycles(proposed: Sequence[ProposedSubtask]) -> tuple[list[ProposedSubtask], list[str]]:
    """
    Return a planner's parts without the edges that no plan can have, and a warning for each one dropped.

    A person's plan with such an edge is refused; a planner's is mended, since nobody is there to ask.
    """
    kept: dict[int, tuple[int, ...]] = {place: () for place in range(len(proposed))}
    warnings: list[str] = []
    for place, part in enumerate(proposed):
        for needed in sorted(set(part.depends_on)):
            if needed not in kept or _reaches(kept, needed, place):
                warnings.append(f"Dropped the dependency of {part.title!r} on subtask {needed}.")
            else:
                kept[place] = (*kept[place], needed)
    return [msgspec.structs.replace(part, depends_on=kept[place]) for place, part in enumerate(proposed)], warnings


def _reaches(needs: Mapping[int, Sequence[int]], start: int, goal: int) -> bool:
    seen, left = {start}, [start]
    while left:
        found = left.pop()
        if found == goal:
            return True
        fresh = set(needs[found]) - seen
        seen |= fresh
        left.extend(fresh)
    return False


def _proposal(item: object) -> ProposedSubtask | None:
    """Return the part that an item of a planner's answer describes, None if no plan can have it."""
    if not isinstance(item, dict):
        return None
    known = {name: value for name, value in cast("dict[Any, Any]", item).items() if name in _FIELDS}
    try:
        part = msgspec.convert(known, ProposedSubtask, strict=False)
        # Nobody is there to ask for a title of one line.
        title = " ".join("".join(" " if ord(c) < 32 or ord(c) == 127 else c for c in part.title).split())
        part = msgspec.structs.replace(part, title=title)
        _check_part(0, msgspec.structs.replace(part, assigned_agent=None, depends_on=()), 1, ())
    except (msgspec.ValidationError, InvalidPlan):
        return None
    return part


def proposals(document: object) -> list[ProposedSubtask]:
    """Return the usable parts of a planner's answer, at most MAX_SUBTASKS, with their dependencies renumbered."""
    usable: dict[int, ProposedSubtask] = {}
    for place, item in enumerate(cast("list[Any]", document) if isinstance(document, list) else []):
        part = _proposal(item)
        if part is not None and len(usable) < MAX_SUBTASKS:
            usable[place] = part
    renumbered = {old: new for new, old in enumerate(usable)}
    return [
        msgspec.structs.replace(part, depends_on=tuple(renumbered[n] for n in part.depends_on if n in renumbered))
        for part in usable.values()
    ]
