"""Two replicas on one PostgreSQL, one data directory and one Redis, which can be hurt."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from steersman.tests.e2e.conftest import LEASES
from steersman.tests.e2e.served import Api, Service, wait_until
from steersman.tests.redis_server import RedisServer


class Pair:
    """Both replicas take commands and drive runs."""

    def __init__(self, home: Path, database: str, stack: ExitStack, **more: str) -> None:
        self.redis = RedisServer()
        stack.callback(self.redis.kill)
        self.redis.start()
        self.services: list[Service] = []
        for name in ("first", "second"):
            (home / name).mkdir()
            variables = {"STEERSMAN_DATABASE": database, "STEERSMAN_REDIS": self.redis.url, **LEASES, **more}
            service = Service(home / name, home / "data", **variables)
            stack.callback(service.close)
            service.token = self.services[0].token if self.services else ""
            self.services.append(service.start())
        self.apis = [Api(service) for service in self.services]
        self.until_redis_is("ok")

    def health(self) -> list[Any]:
        """What both say about themselves."""
        return [api.http.get("/health").json() for api in self.apis]

    def until_redis_is(self, state: str) -> None:
        """Wait until both say so. They are well in any case."""

        def is_so() -> bool:
            health = self.health()
            assert {body["status"] for body in health} == {"ok"}
            return {body["redis"] for body in health} == {state}

        wait_until(is_so, f"both replicas call Redis {state}")
