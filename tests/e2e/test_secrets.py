"""Secrets that agents come by appear in no fact, text, feed, log line or error, wherever they are planted."""

from collections.abc import Iterator
from pathlib import Path

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part
from steersman.tests.live_agents import agents_toml, python_agent

BLOCKED = "coordinator.assembly_blocked"
#: One for each place, so that a find says where it came from.
SECRETS = {
    place: f"ghp_{name}{'0a1B2c3D4e5F' * 3}"
    for place, name in {
        "message": "Message",
        "cut message": "Cut",
        "thought": "Thought",
        "standard error": "Stderr",
        "file name": "Name",
        "file": "File",
        "tool input": "Input",
        "tool output": "Output",
        "permission": "Asked",
        "agent's environment": "AgentEnv",
        "service's environment": "ServiceEnv",
        "last words": "Last",
        "failed turn": "Failed",
        "request": "Request",
    }.items()
}
PERSON = "jane.doe@mail.example.org"
#: It says everything that it knows; what it says in two halves it says more slowly than anybody waits for it.
LEAKY = (
    f"S = {SECRETS!r}\n"
    "def update(what, **more):\n"
    "    send(method='session/update', params={'sessionId': 's1', 'update': {'sessionUpdate': what, **more}})\n"
    "def text(words): return {'type': 'text', 'text': words}\n"
    "hello(); new(); prompt = recv()['id']\n"
    "say('I use ' + S['message'] + ', as " + PERSON + " told me. ')\n"
    "half = len(S['cut message']) // 2\n"
    "say('Or was it ' + S['cut message'][:half]); time.sleep(0.4); say(S['cut message'][half:] + '? ')\n"
    "update('agent_thought_chunk', content=text('Hide ' + S['thought'] + ' '))\n"
    "sys.stderr.write(S['standard error'] + chr(10) + repr(dict(os.environ)) + chr(10)); sys.stderr.flush()\n"
    "say(repr(dict(os.environ)) + ' ')\n"
    "call = {'toolCallId': 't1', 'title': 'fetch', 'rawInput': {'url': 'https://' + S['tool input'] + '@host/'}}\n"
    "update('tool_call', status='pending', kind='fetch', **call)\n"
    "asked = {'toolCallId': 't2', 'title': 'use ' + S['permission'], 'rawInput': {'key': S['permission']}}\n"
    "send(id=77, method='session/request_permission', params={'sessionId': 's1', 'toolCall': asked, 'options': [\n"
    "    {'optionId': 'y', 'name': 'Yes', 'kind': 'allow_once'}, {'optionId': 'n', 'name': 'No', 'kind': 'reject_once'}]})\n"
    "recv()\n"
    "shown = [{'type': 'content', 'content': text(S['tool output'])}]\n"
    "update('tool_call_update', toolCallId='t1', status='completed', content=shown)\n"
    "with open(S['file name'] + '.txt', 'w') as file: file.write(S['file'] + os.environ['STEERSMAN_RUN_ID'])\n"
    "say(S['last words'])\n"
    "send(id=prompt, result={'stopReason': 'end_turn'})\n"
    "recv()\n"
)
DYING = (
    f"S = {SECRETS!r}\n"
    "hello(); new(); prompt = recv()['id']\n"
    "sys.stderr.write('Traceback: ' + S['failed turn'] + chr(10)); sys.stderr.flush()\n"
    "send(id=prompt, error={'code': -32603, 'message': 'no access with ' + S['failed turn']})\n"
    "recv()\n"
)


def found_in(where: str, text: str) -> list[str]:
    """Name the secrets that a text holds."""
    return [f"{place} in {where}" for place, secret in {**SECRETS, "person": PERSON}.items() if secret in text]


def kept_files(data: Path) -> Iterator[Path]:
    """Everything that the service keeps, but for the worktrees and for what its user wrote."""
    for path in data.rglob("*"):
        if path.is_file() and not path.is_relative_to(data / "worktrees") and path.name != "agents.toml":
            yield path


def test_no_secret_is_kept_or_told_wherever_it_is_planted(service: Service, repository: Repository) -> None:
    service.variables["A_TOKEN_OF_SOMEBODY"] = SECRETS["service's environment"]
    environment = {"SOME_VALUE": SECRETS["agent's environment"]}
    leaky = {"command": python_agent(LEAKY), "env": environment}
    agents_toml(service.data, leaky=leaky, dying={"command": python_agent(DYING), "env": environment})
    api = Api(service.start())
    # Both make the same file, so that its name comes up as a conflict, too.
    project = api.project(repository.path, {"role_id": "tester", "model_id": "leaky"})
    run_id = api.orchestrate(project, part("one"), part("two"), auto_approve_tools=True)
    frames = api.until(run_id, GATE)
    assert "coordinator.integration_conflict_auto_resolved" in [frame.event for frame in frames]
    other = Repository(repository.path.parent / "other")
    failing = api.project(other.path, {"role_id": "tester", "model_id": "dying"})
    failed_id = api.orchestrate(failing, part("only"))
    api.until(failed_id, BLOCKED)
    refused = api.http.get(f"/api/runs/{run_id}/questions/{SECRETS['request']}")
    assert refused.status_code in (404, 405)

    told: list[str] = []
    after, types = 0, set[str]()
    while page := api.get(f"/api/events?after={after}&limit=1000"):
        told += found_in("a fact", repr(page))
        types |= {event["type"] for event in page}
        after = page[-1]["position"]
    spoken = {"agent.message.delta", "agent.intent", "tool.call", "tool.result", "tool.output", "tool.auto_approved"}
    assert spoken | {"tool.approval_required", "run.failed"} <= types
    children = [child["childRunId"] for root in (run_id, failed_id) for child in api.get(f"/api/runs/{root}/children")]
    for child in children:
        told += found_in("a feed", service.client().get(f"/api/runs/{child}/stream").text)
        told += found_in("a history", repr(api.get(f"/api/runs/{child}/history")))
        told += found_in("an error", repr(api.get(f"/api/runs/{child}")["error"]))
    assert not told
    words = "".join(
        event["payload"]["delta"]
        for event in api.get(f"/api/runs/{children[0]}/events?type=agent.message.delta&limit=1000")
    )
    assert words.startswith("I use [redacted], as [redacted] told me. Or was it [redacted]? ")
    service.stop()
    kept = [
        find for path in kept_files(service.data) for find in found_in(path.name, path.read_bytes().decode("latin1"))
    ]
    assert not kept
    assert not found_in("the service's log", service.log)
