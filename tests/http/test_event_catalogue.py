"""The API's description has every kind of event with the shape of its payload; and a browser is shown the description."""

import re
from typing import Any

import msgspec
import pytest
from jsonschema_rs import validator_for

from steersman.domain.event import Event
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.http.event_catalogue import CATALOGUE_NAME, event_schemas
from steersman.projections.feeds.timeline import timeline_entry
from steersman.tests.golden.samples import newest
from steersman.tests.golden.test_samples import decoded

SCHEMAS = event_schemas()


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=list(CATALOGUE))
def test_what_is_shown_of_an_event_is_what_the_catalogue_says(kind: type[Event]) -> None:
    schema = {**SCHEMAS[CATALOGUE_NAME]["properties"][kind.TOPIC], "components": {"schemas": SCHEMAS}}
    shown: Any = msgspec.json.decode(msgspec.json.encode(timeline_entry(decoded(newest()[kind.TOPIC]))))
    payload = shown["payload"]
    validator_for(schema).validate(payload)
    named = SCHEMAS[f"Event{kind.__name__}"]
    assert payload.keys() <= named["properties"].keys()
    assert named["description"]


def test_the_description_has_the_catalogue_and_every_event_leads_to_it(api: Any) -> None:
    document = api.anonymous().get("/schema").raise_for_status().json()
    schemas = document["components"]["schemas"]
    assert schemas[CATALOGUE_NAME]["properties"].keys() == CATALOGUE.keys()
    for name in ("EventBody", "LogEventBody"):
        assert CATALOGUE_NAME in schemas[name]["properties"]["payload"]["description"]


def test_a_browser_is_shown_a_page_without_scripts_and_without_another_host(api: Any) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    client = api.anonymous()
    shown = client.get("/schema", headers=browser)
    assert shown.headers["content-type"].startswith("text/html")
    page = shown.text
    document = client.get("/schema", headers={"Accept": "*/*"}).json()
    for methods in document["paths"].values():
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page
    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!#|/schema/openapi\.json|data:,")[^"]*"', page) == []
    targets, ids = set(re.findall(r'href="#([^"]+)"', page)), set(re.findall(r'id="([^"]+)"', page))
    assert targets <= ids
    for name in CATALOGUE:
        assert name in page
    assert client.head("/schema", headers=browser).headers["content-type"].startswith("text/html")
    assert client.get("/schema/openapi.json", headers=browser).json() == document
