"""Types of fields that several requests have."""

from typing import Annotated, TypeAlias

from msgspec import Meta

ModelId: TypeAlias = Annotated[str, Meta(max_length=200)]
