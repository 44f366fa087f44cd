"""The samples of stores: the rows of their tables, one a line, in JSON; bytes are `{"base64": …}`."""

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

TABLES = ("events", "texts", "nodes", "head")
Tables = dict[str, list[dict[str, Any]]]


def write(path: Path, tables: Tables, checkpoints: str) -> None:
    """Write the rows, and behind them the lines of the file of checkpoints."""
    lines = [[name, {key: _told(value) for key, value in row.items()}] for name in TABLES for row in tables[name]]
    kept = [["checkpoints", line] for line in checkpoints.splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *kept]), encoding="utf-8")


def read(path: Path) -> tuple[Tables, list[str]]:
    """Return the rows by their tables, and the lines of the file of checkpoints."""
    tables: Tables = {name: [] for name in TABLES}
    checkpoints: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name, row = json.loads(line)
        if name == "checkpoints":
            checkpoints.append(row)
        else:
            tables[name].append({key: _meant(value) for key, value in row.items()})
    return tables, checkpoints


def put(cursor: Any, mark: str, tables: Tables) -> None:
    """Write the rows into a store that has the tables."""
    for name in TABLES:
        # What a reader finds in `texts`, SQLite keeps in another table.
        place = "kept_texts" if (name, mark) == ("texts", "?") else name
        cursor.execute(f"DELETE FROM {place}")
        for row in tables[name]:
            kept = row | {"id": 1} if name == "head" else row
            marks = ", ".join([mark] * len(kept))
            cursor.execute(f"INSERT INTO {place} ({', '.join(kept)}) VALUES ({marks})", list(kept.values()))


def _told(value: Any) -> Any:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value


def _meant(value: Any) -> Any:
    return b64decode(value["base64"]) if isinstance(value, dict) else value
