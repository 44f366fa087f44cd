"""What the first release left when it was killed is opened by this one: what ended is as it was, what was open goes on."""

import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from steersman.tests.e2e.served import GATE, Api, Service, steersman, wait_until
from steersman.tests.golden.first_release import sample

CLOSED = {"applied", "superseded", "expired", "needs_attention"}
ASKED = ("tool.approval_required", "agent.question_asked")
#: What the sample's slow writer is told to write.
LINES = ["a line"] * 60
#: `audit verify` ends with it: the log is sound, and holds corrections.
STEERED = 10


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A client of a service of this release on what the first one left, which was sound. Each test has runs of its own."""
    with sample.unpacked() as place:
        settings = {"STEERSMAN_KEYS": str(place / "keys"), "STEERSMAN_MAX_AGENTS": "12"}
        service = Service(tmp_path_factory.mktemp("service"), place / "data", **settings)
        check_stores(service)
        try:
            yield Api(service.start())
        finally:
            service.close()


@pytest.fixture
def run_ids() -> Mapping[str, str]:
    """The ids of the sample's runs; tests/golden/first_release/make.py says what each is."""
    return {name: run.run_id for name, run in sample.runs().items()}


def check_stores(service: Service) -> None:
    """Fail if the log does not prove itself, or a view that is made of it anew is not what the log says."""
    steersman("audit", "verify", "--data", service.data, expect=STEERED, **service.variables)
    steersman("replay", "--data", service.data, **service.variables)
    steersman("replay", "--check", "--data", service.data, **service.variables)


def main_holds(path: str) -> str:
    """Return a file of the repository's `main`, as the real git shows it."""
    command = ["git", "-C", sample.PLACE / "repository", "show", f"main:{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def events(api: Api, run_id: str, *types: str) -> list[dict[str, Any]]:
    """Return what a run's feed says of some types, in order."""
    found: list[dict[str, Any]] = api.get(f"/api/runs/{run_id}/events?limit=1000")
    return [event["payload"] | {"type": event["type"]} for event in found if event["type"] in types]


def children(api: Api, run_id: str) -> list[str]:
    """Return the ids of a run's children, by part."""
    return [child["childRunId"] for child in api.get(f"/api/runs/{run_id}/children")]


def is_at_gate(api: Api, run_id: str) -> bool:
    return api.get(f"/api/runs/{run_id}")["status"] == "awaiting_review"


def merge(api: Api, run_id: str) -> None:
    """Take a run from its gate to its merge."""
    wait_until(lambda: is_at_gate(api, run_id), "it is at its gate")
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_merge_completed")


def check_same(now: Any, then: Any, at: str) -> None:
    """Fail if something that was said is not said now. Fields may have come; nothing of what was there may differ."""
    if isinstance(then, dict):
        for name, value in then.items():
            assert name in now, f"{at}.{name} is gone"
            check_patch(now[name], value) if name == "diff" else check_same(now[name], value, f"{at}.{name}")
    elif isinstance(then, list):
        assert len(now) == len(then), at
        for number, (left, right) in enumerate(zip(now, then, strict=True)):
            check_same(left, right, f"{at}[{number}]")
    else:
        assert now == then, at


def check_patch(now: str | None, then: str | None) -> None:
    """Fail if a patch does something else. How much around it is shown is nobody's business."""

    def lines(patch: str | None) -> list[str]:
        return [line for line in (patch or "").splitlines() if line.startswith(("diff ", "+", "-"))]

    assert lines(now) == lines(then)


def settled(api: Api, run_id: str) -> dict[str, Any]:
    """Wait until a run's newest correction has ended; return it."""

    def found() -> dict[str, Any] | None:
        newest: dict[str, Any] = api.get(f"/api/runs/{run_id}/steering")[-1]
        return newest if newest["status"] in CLOSED else None

    directive: dict[str, Any] = wait_until(found, "the correction has ended")
    return directive


def check_corrected(api: Api, run_id: str, path: str, corrected: str) -> None:
    """Fail unless a run's correction is in what is merged, or the log says why it is not."""
    directive = settled(api, run_id)
    if directive["status"] != "applied":
        ends = events(api, run_id, "coordinator.steering")
        assert ends[-1]["reason"], f"nobody says why it is {directive['status']}"
        return
    merge(api, run_id)
    assert main_holds(path) == corrected


def check_served_as_it_was(api: Api, name: str) -> None:
    """Fail unless this release says of a run what the first one did."""
    # By the end of this one's turn the service has looked at every run, and done what it thinks is to be done.
    api.until(sample.runs()["turn"].run_id, GATE)
    then = sample.runs()[name].answers
    assert then
    for path, body in then.items():
        check_same(api.get(path), body, path)


@pytest.mark.parametrize("name", ["merged", "declined", "failed"])
def test_what_had_ended_is_served_as_it_was(api: Api, name: str) -> None:
    check_served_as_it_was(api, name)


def test_an_open_gate_is_approved_and_all_its_children_are_merged(api: Api, run_ids: Mapping[str, str]) -> None:
    assert is_at_gate(api, run_ids["gate"])
    merge(api, run_ids["gate"])
    assert [main_holds(f"gate/{n}.txt") for n in range(1, 5)] == [f"page {n}\n" for n in range(1, 5)]


def test_a_run_that_died_in_the_middle_of_a_turn_says_so_and_ends_as_if_it_had_not(
    api: Api, run_ids: Mapping[str, str]
) -> None:
    merge(api, run_ids["turn"])
    assert [main_holds(f"turn/{name}.txt") for name in ("first", "begun", "last")] == ["first\n", "begun\n", "last\n"]
    assert main_holds("turn/lines.txt").splitlines() == LINES
    interrupted = [len(events(api, child, "turn.interrupted")) for child in children(api, run_ids["turn"])]
    assert interrupted == [0, 1, 0]


def test_a_paused_child_stands_still_until_it_is_resumed(api: Api, run_ids: Mapping[str, str]) -> None:
    (child,) = children(api, run_ids["paused"])
    # By then an agent that should not have been started would have been.
    api.until(run_ids["turn"], GATE)
    (worker,) = api.get(f"/api/fleet?run={run_ids['paused']}")
    assert (worker["task_id"], worker["status"]) == (child, "paused")
    api.post(f"/tasks/{child}/steer", {"kind": "resume"}, 201)
    assert settled(api, run_ids["paused"])["status"] == "applied"
    merge(api, run_ids["paused"])
    assert [main_holds(f"paused/{name}.txt") for name in ("begun", "ended")] == ["begun\n", "ended\n"]


def test_what_its_agents_asked_is_answered_and_they_go_on(api: Api, run_ids: Mapping[str, str]) -> None:
    run_id = run_ids["asking"]
    asking = children(api, run_id)

    def are_answered() -> bool:
        for child in asking:
            answer_all(api, child)
        return is_at_gate(api, run_id)

    # Whoever lost their session may ask anew, so whatever is asked is answered.
    wait_until(are_answered, "nobody asks any more")
    merge(api, run_id)
    assert [main_holds(f"asking/{name}.txt") for name in ("fetched", "answered")] == ["fetched\n", "answered\n"]
    heard = "".join(said["delta"] for said in events(api, asking[1], "agent.message.delta"))
    assert "The answer to “Which colour?” is: Blue." in heard


def answer_all(api: Api, child: str) -> None:
    """Answer what a child has asked; what is over is answered in vain."""
    for asked in events(api, child, *ASKED):
        if asked["type"] == "agent.question_asked":
            path, body = f"questions/{asked['requestId']}/answer", {"answer": "Blue."}
        else:
            path, body = "tool-approvals", {"request_id": asked["request_id"]}
        response = api.http.post(f"/api/runs/{child}/{path}", json=body)
        assert response.status_code in (200, 404, 409), response.text


def test_an_execution_that_had_begun_of_a_correction_ends(api: Api, run_ids: Mapping[str, str]) -> None:
    check_corrected(api, run_ids["revising"], "revising/page.txt", "revised\n")


def test_a_correction_that_had_only_been_received_ends(api: Api, run_ids: Mapping[str, str]) -> None:
    check_corrected(api, run_ids["redirected"], "redirected/page.txt", "redirected\n")


def test_what_was_parked_is_as_it_was_until_it_is_steered_and_then_goes_on(
    api: Api, run_ids: Mapping[str, str]
) -> None:
    run_id = run_ids["blocked"]
    check_served_as_it_was(api, "blocked")
    instruction = 'Try again.\n~~~~rehearsal\n[{"write": {"path": "blocked/other.txt", "text": "in the end\\n"}}]\n~~~~'
    api.post(f"/api/runs/{run_id}/steer", {"kind": "redirect", "instruction": instruction}, 201)
    assert settled(api, run_id)["status"] == "applied"
    merge(api, run_id)
    assert main_holds("blocked/page.txt") == "as it was\n"
    assert main_holds("blocked/other.txt") == "in the end\n"


def test_its_log_and_its_views_are_sound_when_this_release_has_gone_on_with_them(
    api: Api, run_ids: Mapping[str, str]
) -> None:
    api.until(run_ids["turn"], GATE)
    check_stores(api.service)
