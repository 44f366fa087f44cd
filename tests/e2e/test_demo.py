"""The demo is the product's main job, so it is a test of it."""

import re
import subprocess
from pathlib import Path

from steersman.ops.admin.demo_project import FILES
from steersman.tests.e2e.served import environment, steersman


def test_the_demo_ends_with_a_merge_commit_that_holds_everybodys_work(tmp_path: Path) -> None:
    # What a shell may hold; none of it belongs to the demo.
    variables = {"STEERSMAN_KEYS": str(tmp_path / "elsewhere"), "STEERSMAN_DATABASE": "postgresql://127.0.0.1:9/x"}
    told = steersman("demo", TMPDIR=str(tmp_path), **variables)
    places = dict(re.findall(r"^(Merged|Repository|Log) +(\S+)$", told, re.MULTILINE))
    assert Path(places["Log"]).is_file()

    def git(*arguments: str) -> str:
        command = ["git", "-C", places["Repository"], *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert git("rev-parse", "main").strip() == places["Merged"]
    assert len(git("rev-list", "--parents", "-1", "main").split()) > 2
    assert set(FILES) <= set(git("ls-tree", "-r", "--name-only", "main").splitlines())
    assert git("status", "--porcelain") == ""
    assert git("branch", "--list", "steersman/*") == ""
    assert "coordinator.assembly_review_requested" in told
    assert "\x1b" not in told
    line = re.findall(r"^API +(.+)$", told, re.MULTILINE)[0]
    assert first_line(line, PATH="/usr/bin:/bin", **variables).startswith('{"url":"http://127.0.0.1:')


def first_line(line: str, **variables: str) -> str:
    """Return the first thing that a line of the shell prints; what it started is ended."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {line}"], env=environment(**variables), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            return process.stdout.readline()
        finally:
            process.terminate()
