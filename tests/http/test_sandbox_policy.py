"""What a project's agents may do: read from its settings, replaced as a whole, and kept by each run from its start."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steersman.domain.work import agent_requests, turns
from steersman.domain.work.agent_requests import ToolCall
from steersman.http.request.given import Services

from .conftest import served

PATH = "/api/sandbox-policy"
DEFAULT = {
    "shell_enabled": True,
    "allowed_repository_roots": [],
    "destructive_command_patterns": [
        "rm -rf", "del /s", "format ", "mkfs", "dd if=", "git push --force", "git reset --hard"
    ],
    "require_approval_for_all_shell": False,
    "redact_pii": True,
    "max_output_bytes": 4194304,
}  # fmt: skip
STRICT = DEFAULT | {
    "destructive_command_patterns": ["terraform destroy"],
    "max_output_bytes": 1000,
    "redact_pii": False,
}


def get(story: Any, repository: Path) -> Any:
    """Ask for the policy of a repository."""
    query = {"repository_path": str(repository)}
    return story.client.get(PATH, params=query, headers=story.api.settled())


def put(story: Any, repository: Path, **changes: Any) -> Any:
    """Replace the policy of a repository."""
    body = {"repository_path": str(repository)} | STRICT | changes
    return story.client.put(PATH, json=body, headers=story.api.settled())


def test_a_repository_without_settings_has_the_default_policy(story: Any, repository: Path) -> None:
    story.project()
    response = get(story, repository)
    assert (response.status_code, response.json()) == (200, {"repository_path": str(repository)} | DEFAULT)
    assert not (repository / ".steersman").exists()


def test_a_policy_that_is_put_is_the_one_that_is_there(story: Any, repository: Path) -> None:
    story.project()
    response = put(story, repository)
    assert (response.status_code, response.json()) == (200, {"repository_path": str(repository)} | STRICT)
    assert get(story, repository).json() == response.json()
    text = (repository / ".steersman" / "settings.yml").read_text()
    assert "- terraform destroy\n" in text
    assert "repository_path" not in text
    put(story, repository, destructive_command_patterns=["del /s"])
    assert get(story, repository).json()["destructive_command_patterns"] == ["del /s"]
    assert sorted(path.name for path in (repository / ".steersman").iterdir()) == ["settings.yml"]


def test_settings_of_the_other_name_are_read_and_ours_win(story: Any, repository: Path) -> None:
    story.project()
    (repository / ".agentweaver").mkdir()
    (repository / ".agentweaver" / "settings.yml").write_text("shell_enabled: false\nsomething: else\n")
    assert get(story, repository).json() == {"repository_path": str(repository)} | DEFAULT | {"shell_enabled": False}
    put(story, repository)
    assert get(story, repository).json()["shell_enabled"] is True


def test_a_put_keeps_what_else_the_settings_say(story: Any, repository: Path) -> None:
    story.project()
    (repository / ".steersman").mkdir()
    (repository / ".steersman" / "settings.yml").write_text("editor: {tabs: 4}\nredact_pii: true\n")
    put(story, repository)
    text = (repository / ".steersman" / "settings.yml").read_text()
    assert "tabs: 4" in text
    assert "redact_pii: false" in text


@pytest.mark.parametrize("query", ["", "?repository_path=", "?repository_path=shop", "?repository_path=..%2Fshop",
                                   "?repository_path=%00", "?repository_path=/a&repository_path=/b"])  # fmt: skip
def test_a_missing_or_malformed_path_is_400(story: Any, query: str) -> None:
    story.project()
    assert story.client.get(f"{PATH}{query}").status_code == 400


@pytest.mark.parametrize(
    "changes",
    [
        {"destructive_command_patterns": [" "]},
        {"destructive_command_patterns": ["x" * 201]},
        {"destructive_command_patterns": ["x"] * 101},
        {"destructive_command_patterns": None},
        {"allowed_repository_roots": ["relative"]},
        {"max_output_bytes": 0},
        {"max_output_bytes": 4194305},
        {"max_output_bytes": "many"},
        {"shell_enabled": "perhaps"},
        {"unknown": True},
        {"repository_path": "shop"},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_kept_is_400_and_stores_nothing(
    story: Any, repository: Path, changes: dict[str, Any]
) -> None:
    story.project()
    assert put(story, repository, **changes).status_code == 400
    assert not (repository / ".steersman").exists()


@pytest.mark.parametrize("missing", list(STRICT))
def test_every_field_is_required(story: Any, repository: Path, missing: str) -> None:
    story.project()
    body = {"repository_path": str(repository)} | {name: value for name, value in STRICT.items() if name != missing}
    assert story.client.put(PATH, json=body).status_code == 400


def test_a_repository_of_nobodys_or_of_somebody_elses_is_404(api: Any, story: Any, repository: Path) -> None:
    story.project()
    for path in (repository, repository.parent, Path("/etc")):
        query = {"repository_path": str(path)}
        response = api.client("mallory").get(PATH, params=query, headers=api.settled())
        assert (response.status_code, response.json()["error"]) == (404, "project_not_found")
    assert get(story, Path("/etc")).status_code == 404
    assert put(story, Path("/etc")).status_code == 404
    assert api.anonymous().get(PATH, params={"repository_path": str(repository)}).status_code == 401


def test_a_token_that_only_looks_changes_no_policy(api: Any, story: Any, repository: Path) -> None:
    story.project()
    body = {"repository_path": str(repository)} | STRICT
    response = api.client("alice", "viewer").put(PATH, json=body, headers=api.settled())
    assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    assert not (repository / ".steersman").exists()


def test_who_may_change_nothing_in_a_project_replaces_no_policy_of_it_through_a_project_of_their_own(
    api: Any, story: Any, repository: Path
) -> None:
    story.project()
    put(story, repository).raise_for_status()
    bob = api.client("bob")
    theirs = {"name": "Mine", "working_directory": str(repository)}
    their_id = bob.post("/api/projects", json=theirs).raise_for_status().json()["project_id"]
    body = {"repository_path": str(repository)} | STRICT | {"destructive_command_patterns": []}
    role = f"/api/projects/{story.project_id}/members/{api.name('bob')}"
    # Alice's own project does not shield her from what holds for bob's either.
    for client in (bob, story.client):
        refused = client.put(PATH, json=body, headers=api.settled())
        assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")
    story.client.put(role, json={"role": "viewer"}).raise_for_status()
    assert bob.put(PATH, json=body).status_code == 403
    assert get(story, repository).json()["destructive_command_patterns"] == ["terraform destroy"]
    story.client.put(role, json={"role": "contributor"}).raise_for_status()
    assert bob.put(PATH, json=body).status_code == 200
    bob.delete(f"/api/projects/{their_id}?confirm=true").raise_for_status()
    assert put(story, repository).status_code == 200


def test_a_project_that_was_registered_a_moment_ago_has_its_policy_guarded(
    services: Services, api: Any, story: Any, repository: Path
) -> None:
    bob = api.client("bob")
    theirs = {"name": "Mine", "working_directory": str(repository)}
    bob.post("/api/projects", json=theirs).raise_for_status()
    with served(replace(services, views=(late := Late(services.views)))) as url:
        late.reached = services.log.head()
        body = {"repository_path": str(repository)} | STRICT
        put_there = {"url": f"{url}{PATH}", "json": body}
        assert bob.put(**put_there).status_code == 200
        story.project()
        refused = bob.put(**put_there)
        assert (refused.status_code, refused.json()["retryable"]) == (503, True)
        late.reached = services.log.head()
        assert bob.put(**put_there).status_code == 403


class Late:
    """Views that have not come further than somebody lets them."""

    def __init__(self, views: Any) -> None:
        self._views = views
        self.reached = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._views, name)

    def wait(self, view: str, position: int, timeout_seconds: float) -> bool:
        return position <= self.reached and self._views.wait(view, position, timeout_seconds)


@pytest.mark.parametrize(
    "text",
    ["shell_enabled: perhaps\n", "- a list\n", "a: [\n", "destructive_command_patterns: [' ']\n", "\x00", "[" * 5000,
     "max_output_bytes: 1e99\n", "x: !!python/object/apply:os.getcwd []\n", "y" * 70_000],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)  # fmt: skip
def test_settings_that_cannot_be_understood_are_409_and_no_run_starts_under_them(
    story: Any, repository: Path, text: str
) -> None:
    story.project()
    (repository / ".steersman").mkdir()
    (repository / ".steersman" / "settings.yml").write_text(text)
    response = get(story, repository)
    assert (response.status_code, response.json()["error"]) == (409, "sandbox_policy_unreadable")
    body = {"goal": "Sell things", "start_mode": "direct"}
    started = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=body)
    assert (started.status_code, started.json()["error"]) == (409, "sandbox_policy_unreadable")
    assert put(story, repository).status_code == 200
    assert get(story, repository).status_code == 200


@pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])
def test_no_link_leads_to_settings_elsewhere(story: Any, repository: Path, tmp_path: Path, folder: bool) -> None:
    story.project()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "settings.yml").write_text("shell_enabled: false\n")
    if folder:
        (repository / ".steersman").symlink_to(elsewhere)
    else:
        (repository / ".steersman").mkdir()
        (repository / ".steersman" / "settings.yml").symlink_to(elsewhere / "settings.yml")
    assert get(story, repository).status_code == 409
    assert put(story, repository).status_code == (409 if folder else 200)
    assert (elsewhere / "settings.yml").read_text() == "shell_enabled: false\n"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["settings.yml"]


def asked(story: Any, command: str) -> list[str]:
    """What is stored when the first child's agent asks to run a command."""
    story.start()
    story.advance()
    child, at = story.child(1), story.api.services.clock.now()
    base = story.run.base
    story.decide(lambda run: turns.prepare_worktree(run, child, base, "/trees/x", at))
    story.decide(lambda run: turns.open_session(run, child, "session", ()))
    story.decide(lambda run: turns.open_turn(run, child))
    call = ToolCall(tool_name="run_command", tool_input="{}", command=command)
    _, drafts = agent_requests.ask_tool(story.run, child, call)
    story.decide(lambda run: agent_requests.ask_tool(run, child, call)[1])
    (request,) = story.run.children[child].requests.values()
    return [*(draft.event.TOPIC for draft in drafts), request.state]


def test_the_patterns_that_held_at_the_start_are_those_that_a_run_keeps(story: Any, repository: Path) -> None:
    story.project()
    put(story, repository)
    story.project = lambda: story.project_id
    assert asked(story, "terraform   destroy -auto-approve") == [
        "shell.approval_required", "coordinator.child_approval_required", "pending"
    ]  # fmt: skip
    put(story, repository, destructive_command_patterns=[], shell_enabled=False)
    assert story.run.policy.destructive_command_patterns == ("terraform destroy",)


def test_a_command_that_no_pattern_names_is_a_tool_like_any_other(story: Any) -> None:
    assert asked(story, "ls")[0] == "tool.approval_required"


def test_every_command_is_asked_about_where_the_policy_says_so(story: Any, repository: Path) -> None:
    story.project()
    put(story, repository, require_approval_for_all_shell=True)
    story.project = lambda: story.project_id
    assert asked(story, "ls")[0] == "shell.approval_required"


def test_without_a_shell_a_command_is_denied_and_nobody_is_asked(story: Any, repository: Path) -> None:
    story.project()
    put(story, repository, shell_enabled=False)
    story.project = lambda: story.project_id
    assert asked(story, "ls") == ["shell.approval_required", "tool.approval_resolved", "denied"]
    events = story.client.get(f"/api/runs/{story.child(1)}/events?type=tool.approval_resolved").json()
    assert [event["payload"]["resolvedBy"] for event in events] == ["sandbox_policy"]
