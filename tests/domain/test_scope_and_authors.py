"""Whom a correction is about, and who does rejected work over."""

import msgspec
import pytest

from steersman.domain.event import Text
from steersman.domain.facts.work_plan import Subtask, WorkPlan
from steersman.domain.projects.team import Member
from steersman.domain.steering.implicated import implicated
from steersman.domain.steering.rotation import next_author, rotate, score
from steersman.tests.domain.fleet import Fleet, part

TOUCHED = {1: frozenset({"src/App.py"}), 2: frozenset({"docs/readme.md", "src/app.py"}), 3: frozenset({"x"})}


def plan() -> WorkPlan:
    return Fleet(part("One"), part("Two"), part("Three"), part("Four")).to_gate().plan


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["src/app.py"], (1, 2)),
        (["SRC\\APP.PY"], (1, 2)),
        (["app.py"], (1, 2)),
        (["./docs/readme.md"], (2,)),
        (["readme.md", "x"], (2, 3)),
        (["pp.py", "x"], (3,)),
    ],
)
def test_a_name_is_a_path_or_the_end_of_one_after_a_slash_without_regard_to_case(
    names: list[str], found: tuple[int, ...]
) -> None:
    scope = implicated(plan(), names, TOUCHED)
    assert (scope.subtask_ids, scope.fallback) == (found, None)


@pytest.mark.parametrize(
    ("names", "why"),
    [([], "no_target_files_field"), (["", "  "], "no_target_files_field"), (["y"], "target_files_matched_nothing")],
)
def test_without_a_name_that_matches_it_is_about_every_contributor(names: list[str], why: str) -> None:
    scope = implicated(plan(), names, TOUCHED)
    assert (scope.subtask_ids, scope.fallback) == ((1, 2, 3), why)


def test_feedback_that_names_a_file_changes_no_scope() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    changes = fleet.request_changes(words="f1 is wrong, and so is TARGET_FILES: f1")
    assert fleet.directive(changes).subtask_ids == (1, 2)


def subtask(title: str, **changes: object) -> Subtask:
    made = Subtask(
        subtask_id=1,
        title=Text(title),
        scope=Text(""),
        assigned_agent="ann",
        model_id="m",
        phase="execution",
        depends_on=(),
        files=(),
    )
    return msgspec.structs.replace(made, **changes)


def member(name: str, role: str, **changes: object) -> Member:
    made = Member(name=name, role_id=role, role_title=role.replace("-", " ").title(), model_id=None)
    return msgspec.structs.replace(made, **changes)


ANN = member("ann", "software-engineer")
TOM = member("tom", "tester")


def test_whoever_shares_words_with_the_part_fits_it() -> None:
    assert score(subtask("Explain it to its users"), member("w", "technical-writer")) > 0
    assert score(subtask("Zzz"), TOM) == 0
    assert next_author(subtask("Write tests"), [ANN, TOM]) == TOM
    assert next_author(subtask("Zzz"), [ANN, TOM]) is None


def test_each_word_in_common_counts_ten_and_what_its_phase_calls_for_fifteen() -> None:
    assert score(subtask("Tester, tester: zzz"), TOM) == 10
    assert score(subtask("Tester: zzz", phase="validation"), TOM) == 25


def test_the_phase_speaks_for_those_whose_title_it_names() -> None:
    assert score(subtask("Zzz", phase="validation"), member("q", "qa-lead")) == 15
    assert score(subtask("Zzz", phase="planning"), member("a", "architect")) == 15
    assert score(subtask("Zzz"), member("a", "architect")) == 0


def test_neither_the_author_nor_the_locked_out_nor_the_inactive_are_chosen() -> None:
    about = subtask("Write tests", locked_out=frozenset({"tom"}))
    assert next_author(about, [TOM, member("tim", "tester")]) == member("tim", "tester")
    assert next_author(about, [TOM, member("tim", "tester", active=False)]) is None
    assert next_author(subtask("Write tests", assigned_agent="tom"), [TOM]) is None


def test_of_equals_the_one_who_joined_first_is_chosen() -> None:
    first, second = member("one", "tester"), member("two", "tester")
    assert next_author(subtask("Write tests"), [first, second]) == first


def test_everybody_is_rotated_or_nobody() -> None:
    fits, strange = subtask("Write tests"), subtask("Zzz", subtask_id=2)
    assert rotate([fits], [ANN, TOM]).chosen == {1: TOM}
    assert rotate([fits, strange], [ANN, TOM]).chosen == {}
