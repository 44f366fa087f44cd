"""A short campaign of the chaos harness: replicas, stores and agents are hurt while runs are steered; nothing is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

SEED = 11
CAMPAIGN = ["--replicas", "2", "--orchestrations", "3", "--steers", "12", "--faults", "6", "--seed", str(SEED)]
PATIENCE_SECONDS = 280


def test_nothing_is_lost_or_done_twice_whatever_is_killed_stopped_or_emptied(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "steersman.ops.chaos", *CAMPAIGN]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as chaos:
        try:
            said, _ = chaos.communicate(timeout=PATIENCE_SECONDS)
        except BaseException:
            # It ends its replicas and stores by itself when it is asked to.
            os.killpg(chaos.pid, signal.SIGTERM)
            raise
    assert chaos.returncode == 0, said
    assert said.endswith("zero violations\n")
