"""The description of the API: OpenAPI 3.1, as JSON at /schema."""

from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme


def config(version: str) -> OpenAPIConfig:
    """Return how the description is made."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="A token from `steersman token issue`.")
    return OpenAPIConfig(
        title="Steersman",
        version=version,
        description="An event-sourced control plane that runs and steers fleets of coding agents.",
        path="/schema",
        render_plugins=[JsonRenderPlugin(path=["/openapi.json", "/"])],
        components=Components(security_schemes={"bearer": bearer}),
        security=[{"bearer": []}],
        use_handler_docstrings=True,
    )
