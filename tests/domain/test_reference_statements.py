"""Every statement of the reference about steering is shown by a test that exists, or says why it does not hold here."""

import ast
from pathlib import Path

import pytest

from steersman.tests.domain.reference_statements import STATEMENTS, Overruled

ROOT = Path(__file__).parents[2]
ALL = [(group, said, shown) for group, found in STATEMENTS.items() for said, shown in found.items()]


@pytest.mark.parametrize(("group", "said", "shown"), ALL, ids=[f"{group}: {said}"[:90] for group, said, _ in ALL])
def test_a_statement_is_shown_by_a_test_that_exists_or_says_why_not(group: str, said: str, shown: str) -> None:
    if isinstance(shown, Overruled):
        assert len(shown) > 20, "a reason in words"
        return
    path, _, name = shown.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path} has no {name}"
