"""What is sent is signed as Standard Webhooks has it, and has the names that CloudEvents gives."""

import json

from steersman.application.notifying.cloud_event import cloud_event, headers, is_secret, make_secret, signature
from steersman.application.notifying.retries import SCHEDULE_SECONDS, gives_up, wait_seconds
from steersman.application.ports.notices import SigningSecret
from steersman.projections.notices import NUMBERS_PER_FACT, Notice

NOTICE = Notice(
    kind="waiting.began",
    position=7,
    number=7 * NUMBERS_PER_FACT + 1,
    at="2026-06-07T21:09:45+00:00",
    topic="coordinator.assembly_review_requested",
    project_id="p",
    run_id="r",
    item_kind="gate",
    item_id="g",
    waits_for="person",
    since="2026-06-07T21:09:45+00:00",
    traceparent="00-a-b-01",
)


def test_the_sample_of_the_standards_own_libraries_is_signed_as_they_sign_it() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signed = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_an_event_has_what_cloud_events_asks_for_and_nothing_that_says_nothing() -> None:
    event = json.loads(cloud_event(NOTICE, "example.org/log"))
    assert (event["specversion"], event["id"], event["type"]) == ("1.0", "7-2", "io.steersman.waiting.began")
    assert (event["source"], event["subject"], event["traceparent"]) == (
        "urn:steersman:example.org/log",
        "r",
        "00-a-b-01",
    )
    assert all(name.isalnum() and name == name.lower() for name in event)
    assert event["data"]["item_id"] == "g"
    assert None not in event["data"].values()
    assert "child_run_id" not in event["data"]


def test_an_attempt_is_signed_with_every_secret_that_holds_then_and_no_other() -> None:
    old, new = (SigningSecret(secret=make_secret(bytes([n] * 32)), until=until) for n, until in ((1, 100.0), (2, None)))
    for at, count in ((99.0, 2), (100.0, 1)):
        sent = headers(NOTICE, b"{}", [new, old], at)
        signatures = sent["webhook-signature"].split(" ")
        assert len(signatures) == count
        assert signatures[0] == signature(new.secret, "7-2", str(int(at)), b"{}")
        assert sent["webhook-timestamp"] == str(int(at))


def test_a_secret_is_as_long_as_the_standard_asks() -> None:
    assert [is_secret(make_secret(bytes(length))) for length in (23, 24, 64, 65)] == [False, True, True, False]
    assert not is_secret(make_secret(bytes(32)).removeprefix("whsec_"))


def test_waits_grow_by_the_schedule_a_little_later_by_chance_and_as_long_as_the_receiver_asks() -> None:
    waits = [wait_seconds(failures, 0.0) for failures in range(1, len(SCHEDULE_SECONDS) + 1)]
    assert waits == [*SCHEDULE_SECONDS]
    assert sum(waits) > 2 * 86_400
    assert wait_seconds(2, 0.999) > wait_seconds(2, 0.0)
    assert wait_seconds(1, 0.5, 3_600.0) == 3_600.0
    assert wait_seconds(1, 0.5, 1e9) == 86_400.0
    assert [gives_up(len(SCHEDULE_SECONDS)), gives_up(len(SCHEDULE_SECONDS) + 1)] == [False, True]
