"""Commands that look at the files and the store of a service that is at work."""

import json

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import Api, Service, part, steersman, write


def test_the_views_are_what_the_log_says_and_can_be_built_anew_beside_the_service(
    api: Api, repository: Repository
) -> None:
    run_id = api.run_to_merge(api.project(repository.path), part("only", write("a.txt", "a\n")))
    before = api.get(f"/api/runs/{run_id}")
    service = api.service
    for arguments in (("--check",), (), ("--check",)):
        told = steersman("replay", *arguments, "--data", service.data, "--json", **service.variables)
        assert all(view["sound"] for view in json.loads(told))
    assert api.get(f"/api/runs/{run_id}") == before


def test_a_second_service_on_sqlite_in_the_same_data_directory_refuses_to_start(shared_service: Service) -> None:
    # Whatever store the first one has: on SQLite nobody shares a data directory.
    told = steersman("serve", "--port", 0, "--data", shared_service.data, expect=1)
    assert "serves" in told
    assert str(shared_service.process and shared_service.process.pid) in told


def test_the_doctor_finds_nothing_wrong_with_a_machine_that_serves(shared_service: Service) -> None:
    beside = ("--data", shared_service.data, "--json")
    found = json.loads(steersman("doctor", *beside, **shared_service.variables))
    assert not [finding for finding in found if finding["ok"] is False]
    agents = json.loads(steersman("agents", *beside, **shared_service.variables))
    assert agents[0]["name"] == "rehearsal"
    assert {agent["name"]: agent["installed"] for agent in agents}["missing"] is False
