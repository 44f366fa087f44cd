"""How much room is left where the service keeps its data."""

import shutil
from pathlib import Path


def disk_space(directory: Path) -> tuple[int, int] | None:
    """Return free and total bytes, None where the system does not say."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return None
    return usage.free, usage.total
