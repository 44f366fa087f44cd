"""Every kind of event, with the shape of its payload, as the API's description tells it."""

import inspect
from typing import Any

import msgspec

from ..domain.event import Event, Text
from ..domain.kinds.catalogue import CATALOGUE

#: The schema that has every type of event as a member, and what its payload is.
CATALOGUE_NAME = "EventCatalogue"
#: Before the names of what payloads are made of, so that they are not taken for what else the API speaks of.
PREFIX = "Event."
DESCRIPTION = (
    "Every type of event that this release stores, and the shape of its `payload`. A later release adds types, and members "
    "to payloads; it takes none away. Text that was erased is null."
)


def event_schemas() -> dict[str, Any]:
    """Return the schemas of all payloads, by name, and the catalogue that leads to each."""
    kinds = list(CATALOGUE.values())
    references, schemas = msgspec.json.schema_components(
        kinds, schema_hook=_text, ref_template=f"#/components/schemas/{PREFIX}{{name}}"
    )
    named = {f"{PREFIX}{name}": schema for name, schema in schemas.items()}
    topics = {kind.TOPIC: reference for kind, reference in zip(kinds, references, strict=True)}
    for kind in kinds:
        schema = named[f"{PREFIX}{kind.__name__}"]
        schema["title"] = kind.TOPIC
        schema["description"] = _told(kind)
    catalogue = {
        "type": "object",
        "title": CATALOGUE_NAME,
        "description": DESCRIPTION,
        "properties": dict(sorted(topics.items())),
    }
    return {CATALOGUE_NAME: catalogue, **named}


def _told(kind: type[Event]) -> str:
    words = inspect.getdoc(kind) or ""
    return f"{words} (What an agent says while it works.)" if kind.OUTPUT else words


def _text(kind: type) -> dict[str, Any]:
    if kind is not Text:
        raise NotImplementedError
    return {"type": ["string", "null"]}
