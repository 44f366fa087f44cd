"""The command line beside, and against, a running service."""

import json
import signal
from pathlib import Path

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, steersman, wait_until, write

#: What a client is shown is the same on each store.
STORES = ("sqlite",)


def client_of(service: Service) -> dict[str, str]:
    return {"STEERSMAN_SERVER_URL": service.url, "STEERSMAN_TOKEN": service.token}


def test_the_command_line_lists_shows_and_watches_a_run(api: Api, repository: Repository) -> None:
    project = api.project(repository.path)
    run_id = api.run_to_merge(project, part("only", write("a.txt", "a\n")))
    variables = client_of(api.service)
    assert run_id in steersman("runs", "ls", "--project", project, **variables)
    listed = json.loads(steersman("runs", "ls", "--project", project, "--json", **variables))
    assert [run["execution_id"] for run in listed] == [run_id]
    shown = json.loads(steersman("runs", "show", run_id, "--json", **variables))
    assert shown["run"]["status"] == "completed"
    assert [child["subtaskId"] for child in shown["children"]] == [1]
    assert "assemble_ready" in steersman("runs", "show", run_id, **variables)
    lines = [json.loads(line) for line in steersman("runs", "watch", run_id, "--json", **variables).splitlines()]
    assert [line["id"] for line in lines[:-1]] == list(range(1, len(lines)))
    assert lines[-1]["event"] == "done"
    assert steersman("runs", "watch", run_id, "--after", 3, **variables).splitlines()[0].split()[0] == "4"


def test_a_run_at_its_gate_is_explained(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n")))
    api.until(run_id, GATE)
    variables = client_of(api.service)
    words = steersman("runs", "explain", run_id, **variables)
    assert "person: The assembled work is to be reviewed" in words
    found = json.loads(steersman("runs", "explain", run_id, "--json", **variables))
    assert found["owner"]["alive"]
    assert found["effects"] == []
    child = api.get(f"/api/runs/{run_id}/children")[0]["childRunId"]
    assert api.get(f"/api/runs/{child}/explain")["runId"] == run_id


def test_a_client_command_that_is_refused_says_the_status_and_ends_with_1(shared_service: Service) -> None:
    variables = client_of(shared_service)
    missing = "00000000-0000-0000-0000-000000000000"
    assert "HTTP 404 run_not_found" in steersman("runs", "show", missing, expect=1, **variables)
    assert "HTTP 404" in steersman("runs", "watch", missing, expect=1, **variables)
    for stranger in ("../projects", "..", "?", "a/b", "ü", "%2e%2e"):
        for command in ("show", "explain", "watch"):
            assert "HTTP 40" in steersman("runs", command, stranger, expect=1, **variables), (command, stranger)
        assert "HTTP 40" in steersman("runs", "ls", "--project", stranger, expect=1, **variables)
    assert "HTTP 401" in steersman("runs", "ls", expect=1, **variables | {"STEERSMAN_TOKEN": "nonsense"})
    away = variables | {"STEERSMAN_SERVER_URL": "http://127.0.0.1:9"}
    assert "cannot be reached" in steersman("runs", "ls", expect=1, **away)
    steersman("runs", "show", expect=2, **variables)
    steersman("nothing", expect=2)


def test_a_service_that_is_asked_says_where_its_threads_are_and_goes_on(shared_service: Service) -> None:
    assert shared_service.process is not None
    shared_service.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: "in _loop" in shared_service.log, "the driver's thread is named")
    assert shared_service.client().get("/health").is_success


def test_a_revoked_token_lets_nobody_in_any_more(shared_service: Service) -> None:
    token = shared_service.issue("carol")
    carol = shared_service.client(token)
    assert carol.get("/api/projects").status_code == 200
    beside = ("--data", shared_service.data)
    listed = json.loads(steersman("token", "list", "--json", *beside, **shared_service.variables))
    (found,) = [one["id"] for one in listed if one["user"] == "carol"]
    assert token not in json.dumps(listed)
    steersman("token", "revoke", found, *beside, **shared_service.variables)
    assert carol.get("/api/projects").status_code == 401


def test_a_service_without_a_token_is_not_shown_to_other_machines(tmp_path: Path) -> None:
    told = steersman("serve", "--host", "0.0.0.0", "--port", 0, "--data", tmp_path / "data", expect=1)
    assert "token issue" in told


def test_the_doctor_says_what_is_missing(tmp_path: Path) -> None:
    nowhere = "postgresql://nobody:secret@127.0.0.1:9/none"
    told = steersman("doctor", "--data", tmp_path / "data", expect=1, STEERSMAN_DATABASE=nowhere)
    assert "STEERSMAN_DATABASE cannot be reached" in told
    assert "secret" not in told
