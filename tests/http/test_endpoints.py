"""
The table of endpoints (endpoints.json) holds: each endpoint that the API reference names for runs, coordinators and
projects is there, is served and described with each status that the reference names, and each status has its test.
"""

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

TESTS = Path(__file__).parents[1]
TABLE: list[dict[str, Any]] = json.loads(Path(__file__).with_name("endpoints.json").read_text(encoding="utf-8"))
SERVED = [row for row in TABLE if "answers" in row]
#: How many endpoints the reference lists in each group. Its other groups (assistant sessions, casting, blueprints,
#: GitHub, memory, backlog, workflows) belong to features that this service does not have.
#: Of the metrics those two that ask for no token, /health and /api/health, have tests of their own.
NAMED = {"runs": 25, "coordinator": 12, "projects": 16, "metrics": 12, "sandbox": 2}
#: Our own additions to these groups; they are described by the schema and told apart here.
OURS = {
    "/api/projects/{project_id}/budget",
    "/api/projects/{project_id}/delivery",
    "/audit",
    "/budget",
    "/explain",
    "/steering",
    "/steering/{directive}",
    "/steering/{directive}/resolve",
    "/turns",
}


def name(row: dict[str, Any]) -> str:
    """Name an endpoint."""
    return f"{row['method']} {row['path']}"


@cache
def written_in(path: str) -> frozenset[str]:
    """Return the names of the tests of a file."""
    tree = ast.parse((TESTS.parent / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.fixture(scope="module")
def paths(url: str) -> Any:
    """What the service says about its paths."""
    return httpx.get(f"{url}/schema").raise_for_status().json()["paths"]


def test_every_endpoint_of_the_reference_is_in_the_table_once() -> None:
    names = [name(row) for row in TABLE]
    assert len(set(names)) == len(names)
    for group, count in NAMED.items():
        assert len([row for row in TABLE if row["group"] == group]) == count, group


@pytest.mark.parametrize("row", SERVED, ids=name)
def test_each_status_of_an_endpoint_is_described_and_has_its_test(paths: Any, row: dict[str, Any]) -> None:
    operation = paths.get(row["path"], {}).get(row["method"].lower())
    assert operation is not None, "it is not served"
    assert row["answers"]
    for status, test in row["answers"].items():
        assert status in operation["responses"], f"{status} is not described"
        path, _, function = test.partition("::")
        assert function in written_in(path), f"{status}: there is no test {test}"


def test_what_is_left_out_is_not_served_and_says_why(paths: Any) -> None:
    left_out = [row for row in TABLE if "answers" not in row]
    assert left_out
    for row in left_out:
        assert len(row["left_out"]) > 20
        assert row["method"].lower() not in paths.get(row["path"], {})


def test_every_endpoint_of_these_groups_that_is_served_is_in_the_table(paths: Any) -> None:
    table = {name(row) for row in TABLE}
    served = {
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method in methods
        if path.startswith(("/api/runs/", "/api/projects")) and path.removeprefix("/api/runs/{run_id}") not in OURS
    }
    assert served - table == set()
