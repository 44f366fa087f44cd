"""A goal becomes a run, and a repository a project: what is stored, and what is refused."""

import msgspec
import pytest

from steersman.domain.event import Draft
from steersman.domain.facts.run import CoordinatorStarted
from steersman.domain.facts.work_plan import InvalidPlan, WorkPlanMade
from steersman.domain.projects.project import (
    MAX_MEMBERS,
    MAX_NAME_BYTES,
    AddMember,
    CreateProject,
    MemberExists,
    Project,
    TeamFull,
    add_member,
    create_project,
    replay,
)
from steersman.domain.rejected import Invalid
from steersman.domain.runs.orchestration import MAX_GOAL_BYTES, NoTeam, StartRun, start_run
from steersman.tests.domain.fleet import BASE, PROJECT, TEAM, part
from steersman.tests.spec import Numbers

COMMAND = StartRun(run_id="r", work_plan_id="w", goal="Sell", user="alice", model_id="m", plan=(part("One"),))
MODELS = {member.name: "m" for member in TEAM}


def started(project: Project = PROJECT, **changes: object) -> list[Draft]:
    return list(start_run(msgspec.structs.replace(COMMAND, **changes), project, BASE, "/srv", MODELS))


def test_a_goal_with_a_plan_is_two_facts_and_without_one_the_planner_makes_it() -> None:
    assert [type(d.event) for d in started()] == [CoordinatorStarted, WorkPlanMade]
    assert [type(d.event) for d in started(plan=None)] == [CoordinatorStarted]


def test_a_run_begins_at_the_tip_that_it_was_given_with_the_gates_of_its_project() -> None:
    (first, *_) = started()
    assert isinstance(first.event, CoordinatorStarted)
    assert (first.event.base, first.event.originating_branch, first.event.gates) == (BASE, "main", ())


@pytest.mark.parametrize("goal", ["", " \n", "x" * (MAX_GOAL_BYTES + 1), "é" * (MAX_GOAL_BYTES // 2) + "x"])
def test_a_blank_or_oversized_goal_is_refused(goal: str) -> None:
    with pytest.raises(Invalid):
        started(goal=goal)


def test_an_impossible_plan_is_refused_and_nothing_of_the_run_is_stored() -> None:
    with pytest.raises(InvalidPlan):
        started(plan=(part("One", 0),))


def test_without_a_team_nobody_could_be_given_work() -> None:
    with pytest.raises(NoTeam):
        started(msgspec.structs.replace(PROJECT, members=()))


CREATE = CreateProject(
    project_id="p", name="Shop", origin="blank", working_directory="/srv", default_branch="main", owner="alice"
)


def project(*commands: AddMember) -> Project:
    numbers = Numbers()
    facts = numbers.store([create_project(CREATE)])
    for command in commands:
        facts += numbers.store([add_member(replay(facts), command)])
    return replay(facts)


def test_members_get_the_next_free_name_of_their_role() -> None:
    role = AddMember(role_id="tester")
    assert [m.name for m in project(role, role, role).members] == ["tester", "tester-2", "tester-3"]


def test_a_taken_name_and_a_full_team_are_refused() -> None:
    with pytest.raises(MemberExists):
        project(AddMember(role_id="tester", name="bob"), AddMember(role_id="architect", name=" bob "))
    with pytest.raises(TeamFull):
        project(*(AddMember(role_id="tester") for _ in range(MAX_MEMBERS + 1)))


@pytest.mark.parametrize("name", ["", " ", "a\nb", "é" * (MAX_NAME_BYTES // 2) + "x"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        project(AddMember(role_id="tester", name=name))


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(Invalid):
        project(AddMember(role_id="astronaut"))


@pytest.mark.parametrize("name", ["", "  ", "x" * (MAX_NAME_BYTES + 1)])
def test_a_project_has_a_name(name: str) -> None:
    with pytest.raises(Invalid):
        create_project(msgspec.structs.replace(CREATE, name=name))


def test_whoever_creates_a_project_owns_it() -> None:
    assert project().roles == {"alice": "owner"}
