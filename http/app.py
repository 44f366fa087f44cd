"""The API: every route, and the one place where a refusal becomes a status."""

from litestar import Litestar
from litestar.di import Provide

from .given import Services


def create_app(services: Services) -> Litestar:
    """Build the API over the services it is handed."""
    return Litestar(
        route_handlers=[],
        dependencies={"services": Provide(lambda: services, sync_to_thread=False)},
        openapi_config=None,
    )
