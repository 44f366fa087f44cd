"""Who does not look is told, by a webhook and by a command, whatever dies meanwhile."""

import json
import sys
from pathlib import Path

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, wait_until, write
from steersman.tests.http.receiver import receiving


def test_what_waits_is_told_by_webhook_and_command_after_a_kill_and_with_the_receiver_down_at_first(
    tmp_path: Path, repository: Repository
) -> None:
    heard, tell = tmp_path / "heard", tmp_path / "tell.py"
    tell.write_text(
        f"import sys\nassert len(sys.argv) == 1\nopen({str(heard)!r}, 'a').write(sys.stdin.read() + chr(10))\n",
        encoding="utf-8",
    )
    settings = tmp_path / "settings.toml"
    settings.touch(mode=0o600)
    settings.write_text(
        f"notify_command = {json.dumps([sys.executable, str(tell)])}\nwebhook_networks = ['127.0.0.0/8']\n",
        encoding="utf-8",
    )
    variables = {"STEERSMAN_SETTINGS": str(settings), "STEERSMAN_KEYS": str(tmp_path / "keys")}
    service = Service(tmp_path, **variables)
    try:
        with receiving() as local:
            api = Api(service.start())
            project_id = api.project(repository.path)
            local.answers = [(503, {})]
            api.post(f"/api/projects/{project_id}/webhooks", {"url": f"{local.url}/in"}, 201)
            run_id = api.orchestrate(project_id, part("a", write("a.txt", "a")))
            api.until(run_id, GATE)
            local.wait(lambda sent: len(sent) == 1)
            service.kill()
            api = Api(service.start())
            sent = local.wait(lambda sent: len(sent) == 2)
            assert sent[0].headers["webhook-id"] == sent[1].headers["webhook-id"]
            began = sent[1].event
            assert (began["type"], began["data"]["item_kind"]) == ("io.steersman.waiting.began", "gate")
            api.review(run_id, approved=True)
            sent = local.wait(lambda sent: len(sent) == 4)
            ended = {one.event["type"]: one.event["data"] for one in sent[2:]}
            assert ended["io.steersman.waiting.ended"]["item_id"] == began["data"]["item_id"]
            assert ended["io.steersman.run.ended"]["status"] == "completed"
            told = {one.event["id"] for one in sent[1:]}

            def has_heard_all() -> bool:
                # The kill may have had something told twice.
                return heard.exists() and {json.loads(line)["id"] for line in heard.read_text().splitlines()} == told

            wait_until(has_heard_all, "the command is told")
    finally:
        service.close()
