"""What clients see of a run, whenever they come and go."""

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Feed, part, write

#: What is shown here rests on no store; `test_restart.py` and `test_orchestration.py` go the same way on both.
STORES = ("sqlite",)

SLOW = {"append": {"path": "slow.txt", "text": "x\n", "times": 10, "every_ms": 50}}


def test_two_clients_see_identical_frames_and_a_late_one_sees_them_all(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("slow", SLOW), part("quick", write("a.txt", "a\n")))
    first, second = api.feed(run_id), api.feed(run_id)
    seen = first.until(GATE)
    api.review(run_id, approved=True)
    seen += first.until("done")
    assert [frame.id for frame in seen[:-1]] == list(range(1, len(seen)))
    assert seen[-1] == (None, "done", {})
    assert second.until("done") == seen
    late = api.feed(run_id)
    assert late.until("done") == seen
    for feed in (first, second, late):
        feed.close()


def test_a_client_that_comes_back_goes_on_with_the_next_event(api: Api, repository: Repository) -> None:
    run_id = api.run_to_merge(api.project(repository.path), part("only", write("a.txt", "a\n")))
    seen = api.until(run_id, "done")
    for id_ in (1, 5, len(seen) - 1):
        again = api.feed(run_id, id_)
        assert again.until("done") == seen[id_:]
        again.close()
    stored = api.get(f"/api/runs/{run_id}/events")
    assert [(e["sequence"], e["type"], e["payload"]) for e in stored] == [tuple(frame) for frame in seen[:-1]]


def test_a_childs_feed_is_its_own(api: Api, repository: Repository) -> None:
    steps = ({"say": "Here I am."}, write("a.txt", "a\n"))
    run_id = api.run_to_merge(api.project(repository.path), part("only", *steps))
    (child,) = api.get(f"/api/runs/{run_id}/children")
    frames = api.until(child["childRunId"], "done")
    assert [frame.id for frame in frames[:-1]] == list(range(1, len(frames)))
    words = "".join(frame.data["delta"] for frame in frames if frame.event == "agent.message.delta")
    assert words == "Here I am."
    assert frames[-2].event == "run.assemble_ready"


def test_the_feed_of_the_log_shows_every_run_of_the_caller_in_one_order(api: Api, repository: Repository) -> None:
    run_id = api.run_to_merge(api.project(repository.path), part("only", write("a.txt", "a\n")))
    log = Feed(api.http, "/api/events/stream", None)
    seen = log.until("coordinator.assembly_completed")
    while seen[-1].data["root"] != run_id:
        seen += log.until("coordinator.assembly_completed")
    log.close()
    positions = [frame.id or 0 for frame in seen]
    assert positions == sorted(set(positions))
    of_run = [frame.data["run_sequence"] for frame in seen if frame.data["run"] == run_id]
    assert of_run == list(range(1, len(of_run) + 1))
