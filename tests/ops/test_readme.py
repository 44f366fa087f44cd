"""The README's commands do what it says, one after the other, as somebody would paste them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from steersman.tests.e2e.served import PATIENCE_SECONDS, environment
from steersman.tests.ports import free_port

ROOT = Path(__file__).parents[2]
EXECUTED = re.compile(r"<!-- executed -->\n```bash\n(.*?)```", re.DOTALL)

#: The commands need curl; where there is none, nothing here can be shown.
__test__ = shutil.which("curl") is not None


def test_the_commands_of_the_readme_take_a_goal_to_its_merge(tmp_path: Path) -> None:
    blocks = EXECUTED.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 7
    # Whatever fails ends the script; the service that it started must not outlive it.
    script = "set -euo pipefail\ntrap 'kill %1 2>/dev/null; wait' EXIT\n" + "\n".join(blocks)
    assert "--retry 30 " in script
    # A reader's machine is not as busy as one that runs these tests.
    script = script.replace("--retry 30 ", "--retry 300 ")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script.replace("8420", str(free_port()))],
        cwd=tmp_path,
        env=environment(PATH=path, HOME=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "event: done" in done.stdout
    assert "assembly_completed" in done.stdout
    assert '"decision":"in_place_steer"' in done.stdout
    pages = {path.name for path in (tmp_path / "example" / "rehearsal").iterdir()}
    assert pages == {f"write-about-{what}.md" for what in ("water", "tides", "waves", "harbours")}
