"""Whom a correction of the assembled work is about: who changed the files that it names, and who builds on them."""

from collections.abc import Iterable, Mapping

import msgspec

from ..facts.work_plan import SATISFIED, WorkPlan


class Implicated(msgspec.Struct, frozen=True, kw_only=True):
    """The subtasks that a correction is about; `fallback` says why that is everybody, if nobody was named."""

    subtask_ids: tuple[int, ...]
    contributor_ids: tuple[int, ...]
    fallback: str | None = None


def implicated(plan: WorkPlan, target_files: Iterable[str], touched: Mapping[int, frozenset[str]]) -> Implicated:
    """
    Return the subtasks that committed one of the named files.

    *touched* holds the paths that each contributor changed. A name matches a path that it equals, without regard to
    case, or that ends with it after a slash. Names are explicit hints; nothing is ever read out of prose.
    """
    contributors = tuple(i for i, part in sorted(plan.subtasks.items()) if part.status in SATISFIED and touched.get(i))
    everybody = contributors or tuple(sorted(plan.subtasks))
    names = [_plain(name) for name in target_files if name.strip()]
    if not names:
        return Implicated(subtask_ids=everybody, contributor_ids=contributors, fallback="no_target_files_field")
    found = tuple(i for i in contributors if any(_matches(path, names) for path in touched[i]))
    if not found:
        return Implicated(subtask_ids=everybody, contributor_ids=contributors, fallback="target_files_matched_nothing")
    return Implicated(subtask_ids=found, contributor_ids=contributors)


def _plain(name: str) -> str:
    return name.strip().replace("\\", "/").removeprefix("./").casefold()


def _matches(path: str, names: Iterable[str]) -> bool:
    plain = _plain(path)
    return any(plain == name or plain.endswith("/" + name) for name in names)
