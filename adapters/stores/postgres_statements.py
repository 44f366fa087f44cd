"""Our statements as psycopg takes them."""

from pathlib import Path
from typing import LiteralString, cast


def native(statement: str) -> LiteralString:
    """Return a statement that marks its values with `?` in psycopg's own way."""
    return cast("LiteralString", statement.replace("?", "%s"))


def read_sql(name: str) -> LiteralString:
    """Return a file of our folder of SQL."""
    text = (Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return cast("LiteralString", text)  # our own file, as fixed as a literal
