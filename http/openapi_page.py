"""The description of the API as a page for people: no script, and nothing from another host."""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from litestar import Request
from litestar.enums import MediaType
from litestar.openapi.plugins import OpenAPIRenderPlugin

from .openapi import described

#: Below the path of the description.
PATH = "/page"
METHODS = ("get", "post", "put", "patch", "delete")
_REFERENCE = re.compile(r"&quot;#/components/schemas/([^&]+)&quot;")
HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,"><title>%s</title><style>
:root { color-scheme: light dark; } body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
h2 { margin-top: 2rem; } details { border: 1px solid #8886; border-radius: 4px; margin: .3rem 0; padding: .3rem .6rem; }
summary { cursor: pointer; overflow-wrap: anywhere; } code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { overflow-x: auto; } table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid #8886; padding: .2rem .6rem; text-align: left; vertical-align: top; }
.method { display: inline-block; font-weight: bold; min-width: 4.5rem; }
</style></head><body>
"""


class DescriptionPage(OpenAPIRenderPlugin):
    """The page, made once."""

    def __init__(self) -> None:
        super().__init__(path=[PATH], media_type=MediaType.HTML)
        self._page: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return the page."""
        if self._page is None:
            self._page = "".join(page(described(openapi_schema))).encode()
        return self._page


def page(document: dict[str, Any]) -> Iterator[str]:
    """Give the page of a description, part by part."""
    info = document["info"]
    yield HEAD % escape(f"{info['title']} API")
    yield f"<h1>{escape(info['title'])} API</h1><p>{escape(info['description'])} Version {escape(info['version'])}.</p>"
    yield '<p>For programs: <a href="/schema/openapi.json">/schema/openapi.json</a> (OpenAPI 3.1).</p>'
    tags: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                tags.setdefault(methods[method]["tags"][0], []).append(_operation(path, method, methods[method]))
    yield "<nav>" + " · ".join(f'<a href="#tag-{escape(tag)}">{escape(tag)}</a>' for tag in sorted(tags)) + "</nav>"
    for tag, operations in sorted(tags.items()):
        yield f'<h2 id="tag-{escape(tag)}">{escape(tag)}</h2>{"".join(operations)}'
    yield '<h2 id="schemas">Schemas</h2>'
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>'
    yield "</body></html>\n"


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{escape(operation.get('description', ''))}</p>"]
    if parameters := operation.get("parameters"):
        rows = "".join(
            f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}</td>"
            f"<td>{'required' if one.get('required') else ''}</td><td>{escape(one.get('description') or '')}</td></tr>"
            for one in parameters
        )
        parts.append(f"<h4>Parameters</h4><table>{rows}</table>")
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<h4>Body: {escape(media)}</h4>{_json(content.get('schema', {}))}")
    parts.append("<h4>Answers</h4><table>")
    for status, response in sorted(operation["responses"].items()):
        shapes = "".join(
            f"{escape(media)} {_json(content.get('schema', {}))}"
            for media, content in response.get("content", {}).items()
        )
        parts.append(
            f"<tr><td>{escape(status)}</td><td>{escape(response.get('description', ''))}</td><td>{shapes}</td></tr>"
        )
    parts.append("</table>")
    title = f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code> {escape(operation.get("summary", ""))}'
    return f'<details id="{escape(operation["operationId"])}"><summary>{title}</summary>{"".join(parts)}</details>'


def _json(schema: dict[str, Any]) -> str:
    """Return a schema as text, in which what it refers to can be followed."""
    text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
    return f"<pre>{_REFERENCE.sub(_link, text)}</pre>"


def _link(found: re.Match[str]) -> str:
    return f'<a href="#schema-{found[1]}">{found[1]}</a>'
