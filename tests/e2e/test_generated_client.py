"""A client that a generator makes from the description, without a hand on it, takes a goal to its merge."""

import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import httpx
import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, PATIENCE_SECONDS, Api, part, wait_until, write

PACKAGE = "steersman_client"
#: What is written by hand, and stands on what is generated.
TOP = Path(__file__).parents[2] / "clients/python/easy.py"
PATH = "docs/über uns.md"

Imported = Callable[[str], ModuleType]


@pytest.fixture
def document(api: Api) -> Any:
    """The description as anybody gets it."""
    return httpx.get(f"{api.service.url}/schema", timeout=60).raise_for_status().json()


@pytest.fixture
def generated(document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imported:
    """A function that imports a part of the client which is made from the description; a warning fails."""
    (tmp_path / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    generate = [sys.executable, "-P", "-m", "openapi_python_client", "generate", "--fail-on-warning"]
    # The generator tidies what it made with ruff, which it looks for in the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*generate, "--path", "openapi.json", "--output-path", "client"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(TOP, tmp_path / "client" / PACKAGE)
    monkeypatch.syspath_prepend(tmp_path / "client")
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    return lambda name: importlib.import_module(f"{PACKAGE}.{name}" if name else PACKAGE)


@pytest.fixture
def client(api: Api, generated: Imported) -> Iterator[Any]:
    """The generated client, with a token."""
    with generated("").AuthenticatedClient(
        base_url=api.service.url, token=api.service.token, timeout=httpx.Timeout(PATIENCE_SECONDS)
    ) as client:
        yield client


def test_a_generated_client_runs_the_main_path_and_has_every_operation(
    repository: Repository, generated: Imported, client: Any, document: Any, api: Api
) -> None:
    models = generated("models")

    def call(tag: str, operation: str, *given: Any, **more: Any) -> Any:
        return generated(f"api.{tag}.{operation}").sync(*given, client=client, **more)

    project = call(
        "projects",
        "create_project",
        body=models.ProjectRequest(name="generated", working_directory=str(repository.path)),
    )
    project_id = UUID(project.project_id)
    call("projects", "add_member", project_id, body=models.MemberRequest(role_id="software-engineer"))
    plan = models.PlanRequest.from_dict({"subtasks": [part("Say who we are", write(PATH, "steersmen\n"))]})
    wanted = models.OrchestrationRequest(
        goal="Say who we are", start_mode=models.OrchestrationRequestStartModeType0.DIRECT, plan=plan
    )
    started = call("projects", "start_run", project_id, body=wanted, idempotency_key="the-first")
    assert call("projects", "start_run", project_id, body=wanted, idempotency_key="the-first").run_id == started.run_id
    run_id = UUID(started.run_id)

    def shown(status: str) -> Any:
        run = call("runs", "show_run", run_id)
        return run if run.status == status else None

    wait_until(lambda: shown("awaiting_review"), "the run is at its gate")
    (child,) = wait_until(
        # The view of the children may be a little behind that of the run.
        lambda: [c for c in call("runs", "list_children", run_id) if c.child_run_status == "assemble_ready"],
        "the child is shown as ready",
    )
    assert [file.path for file in call("runs", "list_assembly_files", run_id)] == [PATH]
    assert call("runs", "show_assembly_file", run_id, PATH).content == "steersmen\n"
    assert call("runs", "show_assembly_content", run_id, PATH).payload.read() == b"steersmen\n"
    assert GATE in [event.type_ for event in call("runs", "list_events", run_id)]

    note = call("runs", "steer_run", run_id, body=models.SteerRequest(kind="send", instruction="Looks good."))
    assert (note.kind, note.target_scope.kind) == ("send", "run")
    late = models.WorkerSteerRequest(kind="pause")
    assert call("tasks", "steer_task", child.child_run_id, body=late).status == 409
    nobody = models.FleetSteerRequest(kind="pause", selector=models.Selector(run=str(run_id)))
    assert call("fleet", "steer_fleet", body=nobody).status == 400

    assert call("runs", "review_assembly", run_id, body=models.ReviewRequest(approved=True)).accepted
    merged = wait_until(lambda: shown("completed"), "the run has merged")
    assert merged.merged_commit_hash == repository.git("rev-parse", "main")
    assert repository.git("show", f"main:{PATH}") == "steersmen"
    again = call("runs", "review_assembly", run_id, body=models.ReviewRequest(approved=False))
    assert (again.status, again.retryable) == (409, False)

    _by_the_top(generated, api, str(run_id), project_id)

    for path, methods in document["paths"].items():
        for operation in methods.values():
            name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in operation["operationId"])
            tag = operation["tags"][0].replace("-", "_")
            assert callable(generated(f"api.{tag}.{name}").sync_detailed), path


def _by_the_top(generated: Imported, api: Api, merged: str, project_id: UUID) -> None:
    """Use what is written by hand: commands once, refusals as exceptions, a feed from every id, by threads and asyncio."""
    easy, models = generated("easy"), generated("models")
    start, show = generated("api.projects.start_run"), generated("api.runs.show_run")
    plan = models.PlanRequest.from_dict({"subtasks": [part("More", write("more.txt", "more\n"))]})
    wanted = models.OrchestrationRequest(
        goal="More", start_mode=models.OrchestrationRequestStartModeType0.DIRECT, plan=plan
    )
    stored = [(event["sequence"], event["type"]) for event in api.get(f"/api/runs/{merged}/events?limit=1000")]
    with easy.Steersman(api.service.url, api.service.token) as steersman:
        seen = list(steersman.events(merged))
        assert [(event.id, event.type) for event in seen] == stored
        assert list(steersman.events(merged, after=seen[2].id)) == seen[3:]
        assert list(steersman.events(merged, after=seen[-1].id)) == []
        started = steersman.call(start, project_id, body=wanted, idempotency_key="more")
        assert steersman.call(start, project_id, body=wanted, idempotency_key="more").run_id == started.run_id
        assert steersman.wait_until(started.run_id, "awaiting_review")["status"] == "awaiting_review"
        assert steersman.call(show, UUID(started.run_id)).status == "awaiting_review"
        review = generated("api.runs.review_assembly")
        with pytest.raises(easy.Refusal) as refused:
            steersman.call(review, UUID(merged), body=models.ReviewRequest(approved=True))
        assert refused.value.status == 409
        assert refused.value.error in str(refused.value)

    async def at_once() -> list[Any]:
        async with easy.AsyncSteersman(api.service.url, api.service.token) as steersman:
            with pytest.raises(easy.Refusal):
                await steersman.call(show, UUID(int=0))
            assert (await steersman.call(show, UUID(merged))).status == "completed"
            return [event async for event in steersman.events(merged)]

    assert asyncio.run(at_once()) == seen
