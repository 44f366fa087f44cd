"""Every kind of event, with the shape of its payload, as the API's description tells it."""

import inspect
import types
import typing
from typing import Any

import msgspec

from ..domain.event import Event, Text
from ..domain.kinds.catalogue import CATALOGUE

#: The schema that has every type of event as a member, and what its payload is.
CATALOGUE_NAME = "EventCatalogue"
#: Before the names of what payloads are made of, so that they are not taken for what else the API speaks of.
PREFIX = "Event"
DESCRIPTION = (
    "Every type of event that this release stores, and the shape of its `payload`. A later release adds types, and members "
    "to payloads; it takes none away. Text that was erased is null."
)


def event_schemas() -> dict[str, Any]:
    """Return the schemas of all payloads, by name, and the catalogue that leads to each."""
    kinds = list(CATALOGUE.values())
    mirrors = Mirrors()
    references, schemas = msgspec.json.schema_components(
        [mirrors.of(kind) for kind in kinds], ref_template=f"#/components/schemas/{PREFIX}{{name}}"
    )
    named = {f"{PREFIX}{name}": schema | {"title": f"{PREFIX}{name}"} for name, schema in schemas.items()}
    topics = {kind.TOPIC: reference for kind, reference in zip(kinds, references, strict=True)}
    for kind in kinds:
        schema = named[f"{PREFIX}{kind.__name__}"]
        schema["description"] = f"`{kind.TOPIC}`: {_told(kind)}"
    catalogue = {
        "type": "object",
        "title": CATALOGUE_NAME,
        "description": DESCRIPTION,
        "properties": dict(sorted(topics.items())),
    }
    return {CATALOGUE_NAME: catalogue, **named}


class Mirrors:
    """Structs as clients see them: where a fact holds words that may be erased, they see a text or null."""

    def __init__(self) -> None:
        self._made: dict[type[msgspec.Struct], type[msgspec.Struct]] = {}

    def of(self, kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
        """Return the mirror of a struct, the same one each time."""
        if kind not in self._made:
            hints = typing.get_type_hints(kind, include_extras=True)
            fields = [self._field(field, hints[field.name]) for field in msgspec.structs.fields(kind)]
            rename = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
            made = msgspec.defstruct(kind.__name__, fields, rename=rename, kw_only=True, frozen=True)
            made.__doc__ = inspect.getdoc(kind)
            self._made[kind] = made
        return self._made[kind]

    def _field(self, field: msgspec.structs.FieldInfo, hint: Any) -> Any:
        shown = self._shown(hint)
        # Which value stands for what an old fact did not say is of no use to whoever reads one.
        return (field.name, shown) if field.required else (field.name, shown, msgspec.field(default_factory=_nothing))

    def _shown(self, hint: Any) -> Any:
        if hint is Text:
            return str | None
        if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
            return self.of(hint)
        origin: Any = typing.get_origin(hint)
        if origin in (None, typing.Literal):
            return hint
        parts: list[Any] = [part if part is ... else self._shown(part) for part in typing.get_args(hint)]
        if origin is types.UnionType:
            origin = typing.Union
        return origin[tuple(parts)]


def _nothing() -> Any:
    """Make the default of a field that may be absent."""


def _told(kind: type[Event]) -> str:
    words = inspect.getdoc(kind) or ""
    return f"{words} (What an agent says while it works.)" if kind.OUTPUT else words
