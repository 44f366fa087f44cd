"""A client's view of a feed's bytes."""

from steersman.ops.commands.sse import ServerSent, read_events


def test_events_are_read_with_their_ids_and_comments_are_not_events() -> None:
    lines = [
        ": hello",
        "retry: 1000",
        "",
        "id: 3",
        "event: a.b",
        "data: {}",
        "",
        ": keep-alive",
        "",
        "event: done",
        "data: {}",
        "",
    ]
    assert list(read_events(lines)) == [
        ServerSent(id=3, event="a.b", data="{}"),
        ServerSent(id=None, event="done", data="{}"),
    ]


def test_an_event_that_is_cut_off_was_never_sent() -> None:
    assert list(read_events(["id: 1", "event: a", "data: {"])) == []


def test_data_over_several_lines_is_one() -> None:
    assert [event.data for event in read_events(["data: a", "data:b", ""])] == ["a\nb"]
