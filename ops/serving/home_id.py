"""A mark in the data directory by which replicas of one database know that they share it: else workplaces were lost."""

import os
from pathlib import Path
from uuid import uuid4

from ...adapters.stores.postgres_leases import PostgresLeases
from ...application.ports.log import LogUnavailable
from ..refused import Refused

FILE = "home-id"


def settle_home(data: Path, leases: PostgresLeases) -> None:
    """Return if this is the data directory that the database knows; the first one is made known. Raises Refused."""
    try:
        ours = _read_or_make(data / FILE)
        known = leases.settle_home(ours)
    except (OSError, LogUnavailable) as error:
        raise Refused(f"Whether {data} is the data directory of this database cannot be found out: {error}") from error
    if known != ours:
        raise Refused(
            f"{data} is not the data directory that the other replicas of this database use: {data / FILE} says {ours}, "
            f"the database {known}. Mount the shared one, or, if it moved, put its {FILE} there."
        )


def _read_or_make(file: Path) -> str:
    draft = file.with_name(f".{FILE}.{os.getpid()}")
    draft.write_text(f"{uuid4()}\n", encoding="utf-8")
    try:
        os.link(draft, file)  # whole or not at all, and only by the first
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return file.read_text(encoding="utf-8").strip()
