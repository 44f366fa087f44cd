"""What the documents name is there: files, tests, and links from page to page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page.relative_to(ROOT)
    for place in (".", "docs", "docs/decisions", "domain", "projections", "application", "adapters", "http", "ops")
    for page in (ROOT / place).glob("*.md")
)
#: A file of the checkout, named from its top, and perhaps a test in it.
NAMED = re.compile(r"`((?:domain|projections|application|adapters|http|ops|tests|docs)/[\w./-]+)(?:::(\w+))?`")
#: What a room's README says of its own folders is told from there.
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    places = (ROOT, ROOT / page.parent)
    for name, test in NAMED.findall(text):
        found = [place / name for place in places if (place / name).exists()]
        assert found, f"{page} names {name}"
        if test:
            assert f"def {test}(" in found[0].read_text(encoding="utf-8"), f"{page} names {name}::{test}"
    for target in LINK.findall(text):
        assert (ROOT / page.parent / target).exists(), f"{page} links to {target}"


def test_every_promise_names_a_test_that_shows_it() -> None:
    text = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    promises = [
        row for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE) if not row.startswith(("promise", "---"))
    ]
    assert len(promises) > 20
    assert [row for row in promises if "`tests/" not in row.rsplit("|", 1)[-1]] == []
