"""One database is driven by one process."""

from collections.abc import Callable
from pathlib import Path

from steersman.tests.e2e.served import Service, steersman


def test_a_second_service_on_a_database_is_refused_until_the_first_is_gone(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    variables = {"STEERSMAN_DATABASE": new_database()}
    homes = [tmp_path / name for name in ("first", "second")]
    for home in homes:
        home.mkdir()
    first, second = (Service(home, **variables) for home in homes)
    # Both have the same keys: it is the same installation, on another data directory.
    try:
        first.start()
        words = steersman("serve", "--port", "0", "--data", second.data, expect=1, **variables)
        assert "another process serves this database" in words
        first.kill()
        second.start()
    finally:
        first.close()
        second.close()
