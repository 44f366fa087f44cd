"""What may be the beginning of a secret is kept back until the rest of it is there, and nothing else is."""

import pytest

from steersman.domain.redaction.hold_back import unfinished


@pytest.mark.parametrize(
    "beginning", ["password: ", "DB_PASS=", "pass", '"pass": ', "passphrase = 'two ", "api_key: ", "Bearer "]
)
def test_a_name_is_kept_back_with_what_it_names(beginning: str) -> None:
    assert unfinished(f"Now {beginning}") == len("Now ")


@pytest.mark.parametrize("said", ["3 tests passed, ", "I pass it on "])
def test_words_that_only_look_like_a_name_are_let_go(said: str) -> None:
    assert unfinished(said) == len(said)
