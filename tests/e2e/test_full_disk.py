"""A disk that is really full: nobody is told of what was not stored, a run says whom it waits for, and goes on with room."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, steersman, wait_until, write
from steersman.tests.e2e.test_broken_setups import check

MIB = 1024 * 1024


class Disk:
    """A small file system of its own, in memory."""

    def __init__(self, path: Path, size_mib: int) -> None:
        self.path = path
        self._filler = path / "filler"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0755", "none", path], check=True)

    def fill(self) -> None:
        """On return there is no room for another byte."""
        with self._filler.open("ab", buffering=0) as filler, suppress(OSError):
            for size in (MIB, 4096, 1):
                with suppress(OSError):
                    while filler.write(b"\0" * size):
                        pass

    def make_room(self) -> None:
        """On return there is room again."""
        self._filler.unlink()

    def close(self) -> None:
        """Take the file system away, whoever still uses it."""
        subprocess.run(["umount", "--lazy", self.path], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Disk]]:
    """Make disks; on the end they are gone."""
    if os.getuid() != 0:
        # CI is root, so it runs there; an ordinary user's other tests raise the same errors without a disk.
        pytest.skip("only root may mount a file system")
    made: list[Disk] = []

    def make(size_mib: int) -> Disk:
        made.append(Disk(tmp_path / f"disk{len(made)}", size_mib))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_run_on_a_full_disk_of_the_repository_loses_nothing_and_lands_once_there_is_room(
    api: Api, disk: Callable[[int], Disk]
) -> None:
    small = disk(48)
    repository = Repository(small.path / "repository")
    asks = {"tool": {"name": "web_fetch", "input": {"url": "about:blank"}}}
    text = "".join(f"line {number}\n" for number in range(4_000))
    run_id = api.orchestrate(api.project(repository.path), part("only", asks, write("a.txt", text)))
    request_id = api.until(run_id, "coordinator.child_approval_required")[-1].data["requestId"]

    small.fill()
    api.post(f"/api/runs/{run_id}/tool-approvals", {"request_id": request_id})
    _held(api, run_id)
    small.make_room()
    api.post(f"/api/runs/{run_id}/retry", {})
    api.until(run_id, GATE)

    small.fill()
    api.post(f"/api/runs/{run_id}/assembly/review", {"approved": True})
    _held(api, run_id)
    assert repository.git("rev-list", "--count", "main") == "1"
    small.make_room()
    api.post(f"/api/runs/{run_id}/retry", {})
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["a.txt"] == text.strip()
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("fsck", "--strict", "--connectivity-only") == ""


def _held(api: Api, run_id: str) -> None:
    (held,) = wait_until(lambda: api.get(f"/api/runs/{run_id}")["held"], "the run says that it is held")
    assert (held["error_code"], held["waits_for"]) == ("disk_full", "operator")
    (wait,) = [one for one in api.get(f"/api/runs/{run_id}/explain")["waits"] if one["who"] == "operator"]
    assert wait["request"] == f"POST /api/runs/{run_id}/retry"
    check("A full disk", wait["what"])


def test_a_full_disk_of_the_service_takes_no_command_and_keeps_all_that_it_took(
    store: Callable[[], dict[str, str]], tmp_path: Path, repository: Repository, disk: Callable[[int], Disk]
) -> None:
    small = disk(64)
    home = tmp_path / "service"
    home.mkdir()
    service = Service(home, small.path / "data", **store())
    try:
        api = Api(service.start())
        go_on = "go on"
        waits = {"run": ["sh", "-c", f"until test -e '{go_on}'; do sleep 0.1; done; rm '{go_on}'"]}
        run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n"), waits))
        child = api.until(run_id, "subtask.running")[-1].data["childRunId"]
        workplace = service.data / "worktrees" / child
        wait_until((workplace / "a.txt").exists, "the agent is at work")
        api.post(f"/tasks/{child}/steer", _guidance("before"), 201)

        small.fill()
        # A database elsewhere may still take it, as long as its checkpoint finds room in a page that is there.
        answer = api.http.post(f"/tasks/{child}/steer", json=_guidance("in between"))
        assert answer.status_code in (201, 503), answer.text
        kept = ["before", "in between", "after"] if answer.status_code == 201 else ["before", "after"]
        assert api.http.get("/health").status_code in (200, 503)
        small.make_room()

        def takes() -> bool:
            return api.http.post(f"/tasks/{child}/steer", json=_guidance("after")).status_code == 201

        wait_until(takes, "commands are taken again")
        (workplace / go_on).touch()
        api.until(run_id, GATE)
        api.review(run_id, approved=True)
        api.until(run_id, "coordinator.assembly_completed")
        assert repository.files["a.txt"] == "a"
        told = [one["instruction"] for one in api.get(f"/api/runs/{run_id}/steering")]
        assert [words for words in told if words in ("before", "in between", "after")] == kept
        service.stop()
        steersman("audit", "verify", "--data", service.data, expect=10, **service.variables)
    finally:
        service.close()


def _guidance(words: str) -> dict[str, str]:
    return {"kind": "guidance", "guidance": words}
