"""An orchestration whose agent is OpenCode, with a scripted model behind it. It runs where `opencode` is on PATH."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.scripted_model import ScriptedModel, opencode_agent
from steersman.tests.e2e.served import GATE, Api, Service
from steersman.tests.live_agents import agents_toml

#: What is shown here rests on no store; `test_restart.py` and `test_orchestration.py` go the same way on both.
STORES = ("sqlite",)

__test__ = shutil.which("opencode") is not None


@pytest.fixture
def opencode(service: Service, tmp_path: Path) -> Iterator[Service]:
    with ScriptedModel() as model:
        agents_toml(service.data, opencode=opencode_agent(tmp_path, model))
        yield service.start()


def test_an_orchestration_merges_a_file_that_opencode_wrote(opencode: Service, repository: Repository) -> None:
    api = Api(opencode)
    told = json.dumps({"path": "hello.txt", "text": "hello from opencode\n"})
    only = {"title": "Write a greeting", "scope": f"Write a greeting.\n\n```scripted\n{told}\n```\n"}
    project = api.project(repository.path, {"role_id": "tester"})
    run_id = api.orchestrate(project, only, modelId="opencode/scripted/model", autoApproveTools=True)
    frames = api.until(run_id, GATE, "coordinator.assembly_blocked")
    assert frames[-1].event == GATE, api.until(frames[2].data["childRunId"], "done")[-2]
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["hello.txt"] == "hello from opencode"
    settled = api.get(f"/api/runs/{run_id}")
    assert settled["usage"]["input_tokens"] > 0
    assert settled["usage"]["output_tokens"] > 0
    assert [cost["currency"] for cost in settled["usage"]["costs"]] == ["USD"]
    (child,) = api.get(f"/api/runs/{run_id}/children")
    (turn,) = api.get(f"/api/runs/{child['childRunId']}/turns")
    (call,) = turn["tool_calls"]
    assert (call["tool_name"], call["kind"], call["state"]) != ("", "", "called")
    assert "hello from opencode" in call["arguments"]
    assert [Path(at["path"]).name for at in call["locations"]] == ["hello.txt"]
