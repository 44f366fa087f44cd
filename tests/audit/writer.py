"""Append from many threads until somebody kills this process; say what was acknowledged, each on its own line."""

import os
import sys
from itertools import count
from pathlib import Path
from threading import Thread

from steersman.adapters.checkpoint_file import CheckpointFile
from steersman.adapters.log_keys import Keyring
from steersman.adapters.log_opening import sealed_by
from steersman.adapters.postgres_log import PostgresLog
from steersman.adapters.sqlite_log import SqliteLog
from steersman.domain.catalogue import CATALOGUE
from steersman.tests.audit.facts import put, said


def main(kind: str, place: str, home: str, life: str, callers: int) -> None:
    """Open the log and let every caller append, one fact after the other, until the end."""
    seal = sealed_by(Keyring(Path(home) / "keys"), CheckpointFile(Path(home) / "checkpoints.log"))
    log = (
        PostgresLog(place, CATALOGUE, seal=seal) if kind == "postgres" else SqliteLog(Path(place), CATALOGUE, seal=seal)
    )

    def call(caller: int) -> None:
        for turn in count():
            command_id = f"{life}-{caller}-{turn}"
            position = put(log, said(f"r{caller}", "One of many."), command_id=command_id)
            # One write, so that a line is there whole or not at all.
            os.write(1, f"{command_id} {position}\n".encode())

    threads = [Thread(target=call, args=(caller,), daemon=True) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
