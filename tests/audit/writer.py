"""
Append from many threads, so often or until somebody kills this process; say what was acknowledged, each on its own line.
"""

import os
import sys
from itertools import count, islice
from pathlib import Path
from threading import Thread

from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.tests.audit.facts import put, said


def main(kind: str, place: str, home: str, life: str, callers: int, times: int | None) -> None:
    """Open the log and let every caller append, one fact after the other, so many times or until the end."""
    seal = sealed_by(Keyring(Path(home) / "keys"), CheckpointFile(Path(home) / "checkpoints.log"))
    log = (
        PostgresLog(place, CATALOGUE, seal=seal) if kind == "postgres" else SqliteLog(Path(place), CATALOGUE, seal=seal)
    )

    def call(caller: int) -> None:
        for turn in islice(count(), times):
            command_id = f"{life}-{caller}-{turn}"
            position = put(log, said(f"r{caller}", "One of many."), command_id=command_id)
            # One write, so that a line is there whole or not at all.
            os.write(1, f"{command_id} {position}\n".encode())

    if times is not None:  # others start, too: nobody begins before all of them can
        os.write(1, b"ready 0\n")
        sys.stdin.readline()
    threads = [Thread(target=call, args=(caller,), daemon=True) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()


if __name__ == "__main__":
    kind, place, home, life, callers, *times = sys.argv[1:]
    main(kind, place, home, life, int(callers), int(times[0]) if times else None)
