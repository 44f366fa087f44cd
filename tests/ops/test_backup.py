"""A backup that is made while others write can be put back; what was signed after it is told, and never guessed away."""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.adapters.log.opening import put_back
from steersman.adapters.log_format.checkpoint_file import CheckpointFile, read_notes
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.log_format.signed_note import parse_checkpoint
from steersman.adapters.stores.sqlite_log import SqliteRecorder, open_datastore
from steersman.ops.admin.backup import back_up
from steersman.ops.settings import Settings
from steersman.tests.audit import writer
from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, steersman, wait_until, write

BACKUPS = 20


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service on SQLite; it is not started yet."""
    home = tmp_path / "service"
    home.mkdir()
    service = Service(home)
    try:
        yield service
    finally:
        service.close()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository that belongs to this test alone."""
    return Repository(tmp_path / "repository")


def restore(service: Service, backup: Path, *, keep_checkpoints: bool) -> None:
    """Lose the data directory, but for its checkpoints if they are to be kept, and put the backup in its place."""
    kept = (service.data / "checkpoints.log").read_bytes()
    shutil.rmtree(service.data)
    shutil.copytree(backup, service.data)
    if keep_checkpoints:
        (service.data / "checkpoints.log").write_bytes(kept)


def verified(data: Path) -> str:
    """Return the verdict on a data directory."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "steersman.ops.command_line", "audit", "verify", "--json", "--data", data],
        capture_output=True,
        text=True,
        check=False,
    )
    verdict: str = json.loads(done.stdout)["verdict"]
    return verdict


def test_no_backup_of_a_log_that_is_being_written_looks_as_if_it_had_been_cut_short(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    writing = subprocess.Popen(
        [sys.executable, "-P", writer.__file__, "sqlite", str(home / "log.db"), str(home), "life", "4"],
        stdout=subprocess.PIPE,
    )
    settings = Settings(data=home, keys=tmp_path / "elsewhere")
    heads: list[int] = []
    with writing:
        assert writing.stdout is not None
        writing.stdout.readline()
        for number in range(BACKUPS):
            back_up(settings, tmp_path / str(number))
            writing.stdout.readline()
        writing.kill()
    for number in range(BACKUPS):
        copy = tmp_path / str(number)
        recorder = SqliteRecorder(open_datastore(copy / "log.db"))
        assert put_back(recorder, Keyring(home / "keys"), CheckpointFile(copy / "checkpoints.log")) is None
        heads.append(recorder.head())
        recorder.close()
    assert heads == sorted(heads)
    assert heads[0] < heads[-1]


def test_a_backup_of_a_service_at_work_goes_on_where_it_was(
    service: Service, repository: Repository, tmp_path: Path
) -> None:
    api = Api(service.start())
    run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n")))
    api.until(run_id, GATE)
    wait_until(lambda: api.get("/health")["views"]["run_list"]["lag"] == 0, "nothing more is stored")
    backup = tmp_path / "backups" / "monday"
    steersman("backup", "--data", service.data, "--to", backup)
    assert {path.name for path in backup.iterdir()} == {"checkpoints.log", "log.db", "tokens.db"}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (backup, *backup.iterdir())] == [0o700, *[0o600] * 3]
    assert verified(backup) == "clean"
    # It was only read: also where nothing can be written, it needs nothing beside it.
    assert {path.name for path in backup.iterdir()} == {"checkpoints.log", "log.db", "tokens.db"}
    assert [(backup / name).read_bytes()[18:20] for name in ("log.db", "tokens.db")] == [b"\1\1"] * 2
    service.kill()
    restore(service, backup, keep_checkpoints=False)
    api = Api(service.start())
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["a.txt"] == "a"
    service.stop()
    assert verified(service.data) == "clean"


@pytest.mark.parametrize("kept", ["the file", "one checkpoint"])
def test_what_was_signed_after_a_backup_has_to_be_accepted_as_lost(
    service: Service, repository: Repository, tmp_path: Path, kept: str
) -> None:
    api = Api(service.start())
    project = api.project(repository.path)
    backup = tmp_path / "backup"
    steersman("backup", "--data", service.data, "--to", backup)
    api.post(f"/api/projects/{project}/team/members", {"role_id": "tester"})
    checkpoint = api.http.get("/api/log/checkpoint").text
    service.stop()
    restore(service, backup, keep_checkpoints=kept == "the file")
    if kept == "one checkpoint":  # somebody fetched it, and everything else is lost
        with (service.data / "checkpoints.log").open("a", encoding="utf-8") as file:
            file.write(json.dumps(checkpoint) + "\n")
    api = Api(service.start())
    assert len(api.get("/api/projects")) == 1
    api.post(f"/api/projects/{project}/team/members", {"role_id": "tester"}, 503)
    health, remedy = api.get("/health"), "steersman audit accept-restore"
    assert (health["status"], remedy in health["log_rolled_back"]) == ("degraded", True)
    assert "steersman_log_rolled_back 1.0" in api.http.get("/metrics").text
    (said,) = [line for line in service.log.splitlines() if "the store was put back" in line]
    assert (json.loads(said)["level"], remedy in json.loads(said)["reason"]) == ("error", True)
    beside = steersman("audit", "accept-restore", "--data", service.data, expect=1)
    assert f"(pid {service.process and service.process.pid}) serves" in beside
    service.stop()
    steersman("audit", "accept-restore", "--data", service.data)
    api = Api(service.start())
    api.post(f"/api/projects/{project}/team/members", {"role_id": "tester"})
    health = api.get("/health")
    assert (health["status"], health["log_rolled_back"]) == ("ok", None)
    assert "steersman_log_rolled_back 0.0" in api.http.get("/metrics").text
    service.stop()
    assert verified(service.data) == "clean"
    (lost,) = {parse_checkpoint(checkpoint).origin}
    origins = [parse_checkpoint(note).origin for note in read_notes(service.data / "checkpoints.log")]
    assert origins[-1] != lost


def test_a_backup_is_not_put_over_anything_and_half_of_one_is_not_left(service: Service, tmp_path: Path) -> None:
    service.start()
    (tmp_path / "there").mkdir()
    said = steersman("backup", "--data", service.data, "--to", tmp_path / "there", expect=1)
    assert "is there already" in said
    said = steersman("backup", "--data", tmp_path / "there", "--to", tmp_path / "new", expect=1)
    assert "There is no log" in said
    service.stop()
    (service.data / "tokens.db").write_bytes(b"no database" * 1000)
    steersman("backup", "--data", service.data, "--to", tmp_path / "new", expect=1)
    assert {path.name for path in tmp_path.iterdir()} == {"service", "there"}


def test_postgres_is_left_to_its_own_tools(tmp_path: Path) -> None:
    said = steersman(
        "backup", "--data", tmp_path, "--to", tmp_path / "x", expect=1, STEERSMAN_DATABASE="postgresql://localhost/x"
    )
    assert "ops/runbook.md" in said
