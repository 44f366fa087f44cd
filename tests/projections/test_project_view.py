"""A project as clients see it, its team, and who may see it."""

from typing import TYPE_CHECKING

import msgspec

from steersman.projections import project_view

if TYPE_CHECKING:
    from .conftest import History


def test_a_project_has_the_shape_of_the_project_object(history: "History") -> None:
    history.project()
    row = history.row(project_view.VIEW, "p")
    assert row is not None
    assert msgspec.to_builtins(project_view.shown(row, available=False)) == {
        "project_id": "p",
        "name": "Shop",
        "origin": "blank",
        "source_repository": None,
        "working_directory": "/srv/shop",
        "default_branch": "main",
        "owner": "alice",
        "default_provider": None,
        "default_model_github_copilot": None,
        "default_model_microsoft_foundry": None,
        "blueprint_generation_model": None,
        "workflow_generation_model": None,
        "outcome_spec_generation_model": None,
        "available": False,
        "state": "active",
        "source_blueprint_id": None,
        "source_blueprint_type": None,
        "created_at": "2026-06-07T21:09:45+00:00",
        "updated_at": "2026-06-07T21:09:47+00:00",
    }


def test_a_project_remembers_its_team_in_the_order_of_joining(history: "History") -> None:
    history.project()
    row = history.row(project_view.VIEW, "p")
    assert row is not None
    assert [(m.name, m.role_title) for m in row.kept.members] == [
        ("software-engineer", "Software Engineer"),
        ("tester", "Tester"),
    ]
    assert row.kept.version == 3


def test_a_user_is_listed_the_projects_in_which_they_have_a_role(history: "History") -> None:
    history.project()
    found = history.rows(project_view.ROLES_VIEW, project_view.user_group("alice"))
    assert [(row.project_id, row.role) for row in found] == [("p", "owner")]
    assert history.rows(project_view.ROLES_VIEW, project_view.user_group("mallory")) == []
    assert history.row(project_view.ROLES_VIEW, project_view.role_key("p", "mallory")) is None
