"""A service that dies between any two changes of files, in the middle of a run, and one that takes its place."""

import httpx
import pytest

from steersman.adapters.stores.crash_points import POINTS, VARIABLE
from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import Api, Service, part, steersman, wait_until, write

#: Only a linked worktree of an earlier release is converted: `tests/e2e/test_first_release.py` has some.
OF_A_RUN = sorted(POINTS - {"workplace.converted"})


@pytest.mark.parametrize("point", OF_A_RUN)
def test_a_run_ends_with_all_of_its_work_wherever_its_service_dies_at_it(
    service: Service, repository: Repository, point: str
) -> None:
    # The second time, other work of the run is done already; but it lands only once.
    service.variables[VARIABLE] = f"at {point} {1 if point.startswith('landing.') else 2}"
    api = Api(service.start())
    parts = (
        part("left", write("left.txt", "left\n"), write("both.txt", "left\n")),
        part("right", write("right.txt", "right\n"), write("both.txt", "right\n")),
        part("last", write("last.txt", "last\n"), needs=[0, 1]),
    )
    run_id = ""
    has_died = False

    def drive() -> bool:
        nonlocal api, run_id, has_died
        try:
            run_id = run_id or api.orchestrate(api.project(repository.path), *parts)
            run = api.get(f"/api/runs/{run_id}")
            if run["status"] == "awaiting_review":
                api.review(run_id, approved=True, tree_hash=run["tree_hash"])
            return run["status"] == "completed" and not repository.git("for-each-ref", "refs/heads/steersman")
        except (httpx.TransportError, AssertionError):
            process = service.process
            assert process is not None
            wait_until(lambda: process.poll() is not None, "the service is dead, if it fails")
            service.kill()
            has_died = True
            service.variables.pop(VARIABLE)
            api = Api(service.start())
            return False

    wait_until(drive, "the run has ended and is cleared away")
    assert has_died
    files = repository.files
    assert [files[name] for name in ("left.txt", "right.txt", "last.txt")] == ["left", "right", "last"]
    assert files["both.txt"] in ("left", "right")
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("fsck", "--strict", "--connectivity-only") == ""
    for name in ("left.txt", "right.txt", "last.txt"):
        assert len(repository.git("log", "--no-merges", "--format=%H", "--", name).splitlines()) == 1
    assert service.stop() == 0
    steersman("audit", "verify", "--data", service.data)
