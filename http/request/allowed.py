"""What a field could have been, for whoever sent something else: the words that it takes, or the names of an object's members."""

import re
import types
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from litestar.handlers import BaseRouteHandler

#: How a fault begins that a list helps with.
WORD, NAME = "Invalid enum value", "Object contains unknown field"
_STEP = re.compile(r"([^.\[\]]+)|\[[^\]]*\]")
#: Places in lists are told by their number, which whoever asks chooses: so not every answer is kept.
MOST_KEPT = 512
#: What litestar calls a body as a whole.
BODY = "data"


def allowed(handler: BaseRouteHandler, source: str | None, key: str | None, fault: str) -> str:
    """Return, behind a blank, what a field of a request takes; nothing where that is not known, or is no help."""
    if not fault.startswith((WORD, NAME)) or not key:
        return ""
    return _told(handler, source == "body", key, fault.startswith(NAME))


@lru_cache(MOST_KEPT)
def _told(handler: BaseRouteHandler, is_body: bool, key: str, are_names: bool) -> str:
    parameters = handler.parsed_fn_signature.parameters
    steps = [found[1] for found in _STEP.finditer(key)]
    name = BODY if is_body else steps.pop(0)
    if is_body and steps == [BODY]:
        steps = []
    if name not in parameters:
        return ""
    kinds = list(_parts(parameters[name].annotation))
    for step in steps:
        kinds = [part for kind in kinds for inner in _inside(kind, step) for part in _parts(inner)]
    found = [word for kind in kinds for word in (_names(kind) if are_names else _words(kind))]
    if not found:
        return ""
    return f" (it has: {', '.join(found)})" if are_names else f" (it is one of: {', '.join(found)})"


def _parts(kind: Any) -> Iterator[Any]:
    """Give the types that a type may stand for, without what is said about them."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        yield from _parts(typing.get_args(kind)[0])
    elif origin in (typing.Union, types.UnionType):
        for part in typing.get_args(kind):
            yield from _parts(part)
    elif hasattr(kind, "__value__"):
        yield from _parts(kind.__value__)
    else:
        yield kind


def _inside(kind: Any, step: str | None) -> Iterator[Any]:
    """Give the type of a member of an object, or, without a name, of the parts of a list."""
    if step is None:
        yield from typing.get_args(kind)[-1:] if typing.get_args(kind)[-1:] != (...,) else typing.get_args(kind)[:1]
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        yield from (hints[field.name] for field in msgspec.structs.fields(kind) if field.encode_name == step)


def _words(kind: Any) -> Iterator[str]:
    if typing.get_origin(kind) is typing.Literal:
        yield from sorted(str(word) for word in typing.get_args(kind))
    elif typing.get_origin(kind) is dict:  # a key of it
        yield from (word for part in _parts(typing.get_args(kind)[0]) for word in _words(part))


def _names(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from (field.encode_name for field in msgspec.structs.fields(kind))
