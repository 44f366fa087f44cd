"""What a served process tells of itself at /metrics."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import Api, part, wait_until


def scrape(url: str) -> dict[str, float]:
    """Return every sample without labels."""
    text = httpx.get(f"{url}/metrics").raise_for_status().text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.name: sample.value for sample in samples if not sample.labels}


def test_the_log_that_serves_and_the_agents_that_run_are_measured(api: Api, repository: Repository) -> None:
    url = api.service.url
    before = scrape(url)
    run_id = api.orchestrate(api.project(repository.path), part("long", {"hang": {}}))
    wait_until(lambda: scrape(url)["steersman_agent_processes"] == before["steersman_agent_processes"] + 1, "it runs")
    during = scrape(url)
    assert during["steersman_append_seconds_count"] > before["steersman_append_seconds_count"]
    assert during["steersman_append_batch_facts_sum"] > before["steersman_append_batch_facts_sum"]
    api.post(f"/api/runs/{run_id}/cancel", {})
    wait_until(lambda: scrape(url)["steersman_agent_processes"] == before["steersman_agent_processes"], "it has ended")
