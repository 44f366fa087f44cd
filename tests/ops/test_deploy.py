"""What stands in ops/deploy fits the service: files parse, metrics exist, alerts have their entry, feeds are let through."""

import json
import re
import shlex
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from steersman.http.service.metrics import AGES, OLDEST, Metrics
from steersman.ops.command_line import main
from steersman.ops.settings import read_settings
from steersman.tests.http.conftest import opened

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "ops" / "deploy"
RUNBOOK = (ROOT / "ops" / "runbook.md").read_text(encoding="utf-8")
#: What Prometheus itself adds to what it reads.
ADDED_NAMES = {"up"}
ADDED_LABELS = {"job", "instance"}
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")


def loaded(name: str) -> Any:
    """Return a file of YAML."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def alerts() -> list[Any]:
    """Return every alert."""
    return [rule for group in loaded("alerts.yml")["groups"] for rule in group["rules"]]


def panels() -> list[Any]:
    """Return every panel of the dashboard."""
    found: list[Any] = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))["panels"]
    return found


def expressions() -> list[Any]:
    """Return every expression, with who uses it."""
    told = [pytest.param(rule["expr"], id=rule["alert"]) for rule in alerts()]
    shown = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    return [*told, *(pytest.param(expression, id=title) for title, expression in shown)]


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every metric that /metrics has, by name."""
    with opened(tmp_path_factory.mktemp("data")) as services:
        metrics = Metrics()
        families = list(text_string_to_metric_families(metrics.render(services).decode()))
    # Families with labels have no sample before something is counted.
    http = {"steersman_http_requests": {"method", "route", "status"}}
    return {
        f"{family.name}{suffix}": http.get(family.name, {label for s in family.samples for label in s.labels})
        for family in families
        for suffix in SUFFIXES
    }


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_that_is_asked_for_is_one_that_the_service_tells(
    exposed: dict[str, set[str]], expression: str
) -> None:
    names = set(re.findall(r"\b(?:steersman|process)_\w+|\bup\b", expression))
    assert names
    for name in names - ADDED_NAMES:
        assert name in exposed
        for selector in re.findall(rf"{name}\{{([^}}]*)\}}", expression):
            assert set(re.findall(r"(\w+)\s*=", selector)) <= exposed[name] | ADDED_LABELS
    ages = {age for selector in re.findall(r'age="(\w+)"', expression) for age in [selector]}
    assert ages <= {name for name, _ in AGES} | {OLDEST}
    assert set(re.findall(r'state="(\w+)"', expression)) <= {"held", "stale"}


@pytest.mark.parametrize("alert", [pytest.param(rule, id=rule["alert"]) for rule in alerts()])
def test_every_alert_says_what_is_wrong_and_has_an_entry_in_the_runbook(alert: Any) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["annotations"]["summary"].endswith(".")
    file, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert (file, anchor) == ("ops/runbook.md", alert["alert"].lower())
    entry = re.search(rf"^### {alert['alert']}\n(.*?)(?=^##|\Z)", RUNBOOK, re.DOTALL | re.MULTILINE)
    assert entry is not None
    for part in ("Means:", "Kept:", "Look at:", "Do:"):
        assert f"**{part}**" in entry[1]


def test_the_runbook_has_no_entry_for_an_alert_that_there_is_not() -> None:
    entries = re.findall(r"^### (Steersman\w+)$", RUNBOOK, re.MULTILINE)
    assert entries == [rule["alert"] for rule in alerts()]


def commands() -> list[str]:
    """Return every command of ours that the runbook gives."""
    blocks = re.findall(r"```bash\n(.*?)```", RUNBOOK, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("steersman ")]
    return [*lines, *re.findall(r"`(steersman [^`]*)`", RUNBOOK)]


@pytest.mark.parametrize("line", commands())
def test_every_command_of_ours_in_the_runbook_is_one_with_these_options(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    found: click.Command = main
    while isinstance(found, click.Group):
        name = words.pop(0)
        command = found.get_command(click.Context(found), name)
        assert command is not None, name
        found = command
    options = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_the_dashboard_shows_everything_that_the_service_tells(exposed: dict[str, set[str]]) -> None:
    asked = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    told = {re.sub("(_(total|bucket|sum|count|created))+$", "", name) for name in exposed}
    assert {name for name in told if name.startswith("steersman_") and name not in asked} == set()
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(set(places)) == len({panel["id"] for panel in panels()}) == len(panels())


def test_prometheus_reads_the_alerts_and_asks_every_replica() -> None:
    configured, services = loaded("prometheus.yml"), loaded("compose.yaml")["services"]
    assert configured["rule_files"] == ["alerts.yml"]
    (job,) = configured["scrape_configs"]
    assert job["job_name"] == "steersman"
    assert job["static_configs"][0]["targets"] == [f"{name}:8420" for name in replicas(services)]


def replicas(services: Any) -> list[str]:
    """Return the services that serve."""
    return [name for name, service in services.items() if service.get("command", [""])[0] == "serve"]


def test_the_replicas_share_what_they_have_to_and_start_on_tables_that_are_theirs() -> None:
    services = loaded("compose.yaml")["services"]
    assert len(replicas(services)) == 2
    for name in (*replicas(services), "migrate", "token"):
        service = services[name]
        assert service["volumes"] == ["data:/data", "keys:/keys", "repositories:/repositories"]
        settings = read_settings(environment=service["environment"])
        assert settings.database is not None
        assert settings.redis is not None
        assert (str(settings.data), str(settings.keys)) == ("/data", "/keys")
    for name in replicas(services):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert services["migrate"]["command"] == ["migrate", "--before"]
    # Nobody but nginx, and this machine, gets at anything.
    assert {name for name, one in services.items() if "ports" in one} == {"nginx", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for one in services.values() for port in one.get("ports", ()))
    volumes = {volume.split(":")[0] for one in services.values() for volume in one.get("volumes", ())}
    assert {volume for volume in volumes if not volume.startswith(".")} == set(loaded("compose.yaml")["volumes"])


def test_nginx_asks_every_replica_and_lets_feeds_through_unchanged() -> None:
    text = re.sub("#.*", "", (DEPLOY / "nginx.conf").read_text(encoding="utf-8"))
    assert text.count("{") == text.count("}")
    servers = re.findall(r"server (\S+:8420)\s[^;]*;", text)
    assert servers == [f"{name}:8420" for name in replicas(loaded("compose.yaml")["services"])]
    feeds = re.search(r"location ~ (\S+) \{([^}]*)\}", text)
    assert feeds is not None
    for path in ("/api/events/stream", "/api/runs/f36800fd-f2f8-418c-958e-aae3e4921ba6/stream"):
        assert re.search(feeds[1], path)
    assert not re.search(feeds[1], "/api/runs/a/b/stream")
    for line in ("proxy_buffering off", "proxy_cache off", "gzip off", "proxy_read_timeout 1h"):
        assert f"{line};" in feeds[2]
    # These hold for every place because no place sets a header of its own.
    assert 'proxy_set_header Connection "";' in text
    assert "proxy_http_version 1.1;" in text
    assert "proxy_set_header" not in feeds[2]
    assert "non_idempotent" not in text


def test_the_unit_gives_a_drain_its_time_and_agents_what_they_need() -> None:
    unit = RawConfigParser(strict=False)
    vars(unit)["optionxform"] = str
    unit.read(DEPLOY / "steersman.service")
    service = unit["Service"]
    assert (service["KillMode"], service["Restart"], service["TimeoutStopSec"]) == ("mixed", "always", "60")
    assert "serve" in service["ExecStart"]
    for kept in ("ProtectHome", "MemoryDenyWriteExecute", "RestrictNamespaces", "PrivateNetwork", "ProtectProc"):
        assert kept not in service
    text = (DEPLOY / "steersman.service").read_text(encoding="utf-8")
    places = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
    settings = read_settings(environment=places)
    assert not settings.keys.is_relative_to(settings.data)


def test_the_image_installs_what_the_lock_names_and_runs_as_nobody_in_particular() -> None:
    lines = [line for line in (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    text = "\n".join(lines)
    assert "--require-hashes --only-binary :all: --requirement requirements.lock" in text
    assert re.search(r"install .*\bgit tini\b", text)
    last = text.rsplit("FROM ", 1)[1]
    assert last.index("USER steersman") < last.index("ENTRYPOINT")
    assert "HEALTHCHECK" in last
    assert "/health" in last
    copied = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rooms = {line[1:] for line in copied if line.startswith("!")}
    assert {"domain", "projections", "application", "adapters", "http", "ops", "pyproject.toml"} <= rooms
    assert all((ROOT / room).exists() for room in rooms)
