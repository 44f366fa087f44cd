"""Projects change: their name, defaults, people and team; and end. Only owners may, and the last owner stays."""

from typing import Any

import pytest

from steersman.application.commands.delete_project import go_on
from steersman.application.views.keep_views import sweep
from steersman.domain.event import map_texts
from steersman.domain.process.effects import EndWorkers, EraseRun, next_effects
from steersman.domain.work import workers

NOBODY = "f36800fd-f2f8-418c-958e-aae3e4921ba6"
OWNERS = [
    ("PATCH", "", {"name": "x"}),
    ("PUT", "/provider-settings", {}),
    ("PUT", "/members/bob", {"role": "viewer"}),
    ("DELETE", "/members/bob", None),
    ("DELETE", "?confirm=true", None),
]
CONTRIBUTORS = [
    ("DELETE", "/team/members/tester", None),
    ("PATCH", "/team/members/tester", {"new_role_id": "architect"}),
    ("PUT", "/team/members/tester/charter", {"content": "x"}),
]


def send(client: Any, method: str, path: str, body: Any = None) -> Any:
    """Send a request."""
    return client.request(method, path, json=body)


def of(story: Any, rest: str = "") -> str:
    """A path of the project."""
    return f"/api/projects/{story.project_id}{rest}"


def end_runs(story: Any) -> None:
    """Do what a stop asks for: no agent is alive here."""
    story.advance()
    (stop,) = [e for e in next_effects(story.run) if isinstance(e, EndWorkers)]
    at = story.api.services.clock.now()
    killed = {child: () for child in story.run.children}
    story.decide(lambda run: workers.confirm_end(run, stop.directive_id, killed, at))


def test_a_renamed_project_is_shown_and_listed_with_its_name(api: Any, story: Any) -> None:
    story.project()
    response = story.client.patch(of(story), json={"name": "new-name"})
    assert (response.status_code, response.content) == (204, b"")
    settled = {"Steersman-Min-Position": response.headers["steersman-position"]}
    assert story.client.get(of(story), headers=settled).json()["name"] == "new-name"
    assert [p["name"] for p in story.client.get("/api/projects", headers=settled).json()] == ["new-name"]


@pytest.mark.parametrize(
    "body", [{}, {"name": ""}, {"name": " "}, {"name": "x" * 201}, {"name": 1}, {"name": "x", "a": 1}]
)
def test_a_bad_name_is_400_and_stores_nothing(api: Any, story: Any, body: Any) -> None:
    story.project()
    head = api.services.log.head()
    assert story.client.patch(of(story), json=body).status_code == 400
    assert api.services.log.head() == head


def test_provider_settings_are_replaced_as_a_whole(api: Any, story: Any) -> None:
    story.project()
    settings = {
        "default_provider": "byok",
        "default_model_github_copilot": None,
        "default_model_microsoft_foundry": "rehearsal/gpt-4o",
        "blueprint_generation_model": "gpt-5-mini",
        "workflow_generation_model": None,
        "outcome_spec_generation_model": "claude-sonnet-4.6",
    }
    assert story.client.put(of(story, "/provider-settings"), json=settings).status_code == 204
    shown = story.client.get(of(story), headers=api.settled()).json()
    assert {name: shown[name] for name in settings} == settings
    assert story.client.put(of(story, "/provider-settings"), json={}).status_code == 204
    shown = story.client.get(of(story), headers=api.settled()).json()
    assert {shown[name] for name in settings} == {None}
    assert story.client.put(of(story, "/provider-settings"), json={"default_provider": "x"}).status_code == 400


def test_a_user_sees_and_changes_what_their_role_allows(api: Any, story: Any) -> None:
    story.start()
    bob, name = api.client("bob"), api.name("bob")
    assert bob.get(of(story)).status_code == 404
    granted = story.client.put(of(story, f"/members/{name}"), json={"role": "viewer"})
    assert (granted.status_code, granted.json()) == (200, {"user": name, "role": "viewer"})
    assert [p["project_id"] for p in bob.get("/api/projects", headers=api.settled()).json()] == [story.project_id]
    assert bob.get(f"/api/runs/{story.run_id}").status_code == 200
    assert bob.post(f"/api/runs/{story.run_id}/archive").status_code == 403
    story.client.put(of(story, f"/members/{name}"), json={"role": "contributor"}).raise_for_status()
    assert bob.post(f"/api/runs/{story.run_id}/archive").status_code == 200
    assert bob.get(of(story, "/members")).json() == [
        {"user": api.name("alice"), "role": "owner"},
        {"user": name, "role": "contributor"},
    ]
    assert story.client.delete(of(story, f"/members/{name}")).status_code == 204
    assert bob.get(f"/api/runs/{story.run_id}").status_code == 403
    assert bob.get("/api/projects", headers=api.settled()).json() == []
    assert story.client.delete(of(story, f"/members/{name}")).json()["error"] == "user_not_found"


@pytest.mark.parametrize("name", ["%2E", "%2E%2E", "a%0Ab", "%20", "a%7F", "a%1B", "%E2%80%A8"])
def test_a_user_whose_name_no_path_could_hold_is_given_no_role(api: Any, story: Any, name: str) -> None:
    story.project()
    head = api.services.log.head()
    refused = story.client.put(of(story, f"/members/{name}"), json={"role": "viewer"})
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid")
    assert api.services.log.head() == head


def test_the_last_owner_can_neither_leave_nor_be_less(api: Any, story: Any) -> None:
    story.project()
    alice, bob = api.name("alice"), api.name("bob")
    head = api.services.log.head()
    for method, body in (("DELETE", None), ("PUT", {"role": "viewer"})):
        refused = send(story.client, method, of(story, f"/members/{alice}"), body)
        assert (refused.status_code, refused.json()["error"]) == (409, "last_owner")
    assert api.services.log.head() == head
    story.client.put(of(story, f"/members/{bob}"), json={"role": "owner"}).raise_for_status()
    assert story.client.delete(of(story, f"/members/{alice}")).status_code == 204
    assert story.client.get(of(story)).status_code == 404


@pytest.mark.parametrize(("method", "path", "body"), OWNERS + CONTRIBUTORS)
def test_who_may_not_change_a_project_changes_nothing(api: Any, story: Any, method: str, path: str, body: Any) -> None:
    story.project()
    client = api.client("carol")
    role = "contributor" if (method, path, body) in OWNERS else "viewer"
    story.client.put(of(story, f"/members/{api.name('carol')}"), json={"role": role}).raise_for_status()
    head = api.services.log.head()
    assert send(client, method, of(story, path), body).status_code == 403
    assert send(api.client("alice", "viewer"), method, of(story, path), body).status_code == 403
    assert send(api.client("mallory"), method, of(story, path), body).status_code == 404
    assert send(story.client, method, f"/api/projects/{NOBODY}{path}", body).status_code == 404
    assert api.services.log.head() == head


def test_a_deletion_must_be_confirmed(api: Any, story: Any) -> None:
    story.project()
    head = api.services.log.head()
    for query in ("", "?confirm=false", "?confirm=", "?confirm=true&confirm=true"):
        refused = story.client.delete(of(story, query))
        assert (refused.status_code, refused.json()["error"]) == (400, "confirmation_required")
    assert api.services.log.head() == head


def test_a_project_without_runs_is_gone_at_once_and_its_directory_stays(api: Any, story: Any, repository: Any) -> None:
    story.project()
    assert story.client.delete(of(story, "?confirm=true")).status_code == 204
    assert story.client.get(of(story), headers=api.settled()).status_code == 404
    assert story.client.get("/api/projects", headers=api.settled()).json() == []
    assert story.client.delete(of(story, "?confirm=true")).status_code == 404
    assert (repository / "README").exists()


def test_a_project_with_a_run_is_deleting_until_the_run_is_cancelled(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    assert story.client.delete(of(story, "?confirm=true")).status_code == 204
    assert story.client.get(of(story), headers=api.settled()).json()["state"] == "deleting"
    body = {"goal": "More", "start_mode": "direct"}
    for refused in (
        story.client.post(of(story, "/orchestrations"), json=body),
        story.client.patch(of(story), json={"name": "x"}),
        story.client.post(of(story, "/team/members"), json={"role_id": "tester"}),
    ):
        assert (refused.status_code, refused.json()["error"]) == (409, "project_deleting")
    end_runs(story)
    assert story.run.result == "project_deleted"
    topics = [e["type"] for e in story.client.get(f"/api/runs/{story.run_id}/events?limit=1000").json()]
    assert topics[-1] == "run.cancelled"
    assert story.client.delete(of(story, "?confirm=true")).status_code == 204
    assert story.client.get(of(story)).status_code == 404
    assert story.client.get(f"/api/runs/{story.run_id}").status_code == 404
    assert [f for f in story.client.get("/api/events?limit=1000").json() if f["root"] == story.run_id] == []


def test_a_deleted_project_takes_its_ended_runs_and_every_word_of_its_own_with_it(api: Any, story: Any) -> None:
    made = story.to_gate()
    story.client.post(f"/api/runs/{story.run_id}/review", json={"approved": True}).raise_for_status()
    story.merge(made)
    put = story.client.put(of(story, "/team/members/tester/charter"), json={"content": "A word of ours"})
    put.raise_for_status()
    assert story.client.delete(of(story, "?confirm=true")).status_code == 204
    for gone in ("", "/runs", "/team"):
        assert story.client.get(of(story, gone)).status_code == 404
    for run_id in (story.run_id, story.child(1)):
        assert story.client.get(f"/api/runs/{run_id}").status_code == 404
    assert story.run.deleted
    assert [type(effect) for effect in next_effects(story.run)] == [EraseRun]
    left: list[str | None] = []
    for fact in api.services.log.read_stream(f"project/{story.project_id}"):
        map_texts(fact.event, lambda text: left.append(text.value))
    assert len(left) == 3
    assert set(left) == {None}


def test_a_run_that_came_too_late_for_its_project_is_deleted_with_it(api: Any, story: Any) -> None:
    story.project()
    story.client.delete(of(story, "?confirm=true")).raise_for_status()
    gone = story.project_id
    story.start()
    # As if the run had been started while nobody knew yet that the other project is being deleted.
    go_on([], [(story.run_id, gone)], lambda _: (), api.services.runs)
    assert story.run.deleted
    story.advance()
    assert [type(effect) for effect in next_effects(story.run)] == [EndWorkers]


def test_a_deletion_that_was_cut_short_is_finished_by_the_sweep(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    story.client.delete(of(story, "?confirm=true")).raise_for_status()
    end_runs(story)
    services = api.services
    assert story.run_id in list(sweep(services.views, services.runs))
    assert story.client.get(of(story)).status_code == 404
    head = services.log.head()
    list(sweep(services.views, services.runs))
    assert services.log.head() == head


def test_a_run_is_not_submitted_alone_any_more(api: Any, story: Any) -> None:
    story.project()
    gone = story.client.post(of(story, "/runs"), json={"task": "x"})
    assert (gone.status_code, gone.json()["error"]) == (410, "gone")
    assert "orchestrations" in gone.json()["message"]
    assert api.client("mallory").post(of(story, "/runs")).status_code == 404


def test_a_retired_member_is_shown_as_retired_and_given_no_work(api: Any, story: Any) -> None:
    story.project()
    for _ in range(2):
        assert story.client.delete(of(story, "/team/members/tester")).status_code == 204
    team = story.client.get(of(story, "/team")).json()["members"]
    assert [(m["name"], m["status"]) for m in team] == [("software-engineer", "active"), ("tester", "retired")]
    body = {"goal": "x", "start_mode": "direct", "plan": {"subtasks": [{"title": "x", "assignedAgent": "tester"}]}}
    assert story.client.post(of(story, "/orchestrations"), json=body).status_code == 400


def test_a_member_with_another_role_has_its_charter(api: Any, story: Any) -> None:
    story.project()
    path = of(story, "/team/members/tester")
    written = story.client.put(f"{path}/charter", json={"content": "# Mine\n"})
    assert (written.status_code, written.json()) == (200, {"member_name": "tester", "content": "# Mine\n"})
    assert story.client.get(f"{path}/charter").json() == written.json()
    answer = story.client.patch(path, json={"new_role_id": "product-manager", "custom_role_title": None})
    assert (answer.status_code, answer.json()["role_title"]) == (200, "Product Manager")
    assert "Product Manager" in story.client.get(f"{path}/charter").json()["content"]
    for body in ({"new_role_id": "king"}, {}):
        assert story.client.patch(path, json=body).status_code == 400
    for body in ({"content": ""}, {"content": "x" * 65_537}, {}):
        assert story.client.put(f"{path}/charter", json=body).status_code == 400


@pytest.mark.parametrize("name", ["Scribe", "ralph", "RAI"])
def test_built_in_agents_are_neither_taken_on_nor_changed(api: Any, story: Any, name: str) -> None:
    story.project()
    head = api.services.log.head()
    path = of(story, f"/team/members/{name}")
    for refused in (
        story.client.post(of(story, "/team/members"), json={"role_id": "tester", "name": name}),
        story.client.delete(path),
        story.client.patch(path, json={"new_role_id": "tester"}),
        story.client.put(f"{path}/charter", json={"content": "x"}),
    ):
        assert (refused.status_code, refused.json()["error"]) == (400, "built_in_member")
    assert api.services.log.head() == head


def test_a_member_that_is_not_there_is_404(api: Any, story: Any) -> None:
    story.project()
    path = of(story, "/team/members/nobody")
    for method, rest, body in (
        ("DELETE", "", None),
        ("PATCH", "", {"new_role_id": "tester"}),
        ("GET", "/charter", None),
        ("PUT", "/charter", {"content": "x"}),
        ("GET", "/history", None),
    ):
        refused = send(story.client, method, path + rest, body)
        assert (refused.status_code, refused.json()["error"]) == (404, "member_not_found")


def test_what_a_member_has_worked_on_is_listed(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    path = of(story, "/team/members/software-engineer/history")
    (worked,) = story.client.get(path, headers=api.settled()).json()
    assert (worked["run_id"], worked["coordinator_run_id"]) == (story.child(1), story.run_id)
