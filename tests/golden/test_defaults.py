"""What a fact says where it says nothing: a stored fact without a member means today what it meant when it was stored."""

from pathlib import Path

import msgspec

from steersman.domain.kinds.catalogue import CATALOGUE

KNOWN = Path(__file__).with_name("defaults.txt")


def test_a_member_that_is_left_out_means_what_it_always_meant() -> None:
    told = [
        f"{topic} {field.encode_name} {field.default!r}"
        for topic, kind in sorted(CATALOGUE.items())
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT
    ]
    assert told == KNOWN.read_text(encoding="utf-8").splitlines(), "what is known stays; a new member is a new line"
