"""Who gets the places for agents: nobody twice, nobody in front of their turn, and every project its share."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from steersman.application.driving.places import Places, Seeker, next_in_line

PROJECTS = "abc"


def seeker(name: str, project: str, *, under_way: bool = False, has_process: bool = False) -> Seeker:
    return Seeker(
        effect_id=name,
        run_id=f"run of {name}",
        project_id=project,
        asked_by=name,
        under_way=under_way,
        has_process=has_process,
    )


def line(*projects: str) -> list[Seeker]:
    return [seeker(f"{place}", project) for place, project in enumerate(projects)]


seekers = st.lists(st.tuples(st.sampled_from(PROJECTS), st.booleans(), st.booleans()), max_size=12).map(
    lambda found: [
        seeker(f"{place}", project, under_way=begun or here, has_process=here)
        for place, (project, begun, here) in enumerate(found)
    ]
)
holders = st.dictionaries(st.sampled_from(PROJECTS), st.integers(0, 5))


@given(seekers, holders, st.integers(0, 8), st.none() | st.integers(0, 8))
def test_each_place_goes_to_who_is_under_way_then_to_the_project_with_fewest_then_to_the_oldest(
    waiting: Sequence[Seeker], held: dict[str, int], free: int, room: int | None
) -> None:
    chosen = next_in_line(waiting, held, free, room)
    assert len({one.effect_id for one in chosen}) == len(chosen) <= free
    left, counts = list(waiting), Counter(held)
    for one in chosen:
        could = [other for other in left if other.has_process or room is None or room > 0]
        assert one in could
        for other in could:
            if other.under_way != one.under_way:
                assert one.under_way
            elif other.project_id != one.project_id:
                older = left.index(other) < left.index(one)
                assert counts[one.project_id] < counts[other.project_id] + (not older)
            else:
                assert left.index(one) <= left.index(other), "of one project the oldest comes first"
        left.remove(one)
        counts[one.project_id] += 1
        room = room if room is None or one.has_process else room - 1
    could = [other for other in left if other.has_process or room is None or room > 0]
    assert len(chosen) == free or not could, "no place stays free that somebody could take"


@given(st.lists(st.sampled_from(PROJECTS), min_size=1, max_size=20), st.integers(1, 6))
def test_among_projects_with_enough_to_do_no_one_gets_two_places_more_than_another(
    projects: list[str], free: int
) -> None:
    got = Counter(one.project_id for one in next_in_line(line(*projects), {}, free))
    wanted = Counter(projects)
    for project, other in ((p, o) for p in wanted for o in wanted if got[p] < wanted[p]):
        assert got[other] <= got[project] + 1


class Step(msgspec.Struct, frozen=True):
    """What happens to an agent: it asks for a place, rests, wants to go on, or ends."""

    kind: str
    name: int


steps = st.lists(st.builds(Step, st.sampled_from(["take", "rest", "again", "leave"]), st.integers(0, 9)), max_size=60)


@given(steps, st.integers(1, 3), st.integers(1, 6))
def test_the_bounds_hold_whatever_happens_and_everybody_comes_to_a_place_once_others_have_left(
    happened: Sequence[Step], places: int, processes: int
) -> None:
    found, at_work, resting = Places(places, processes), set[str](), set[str]()
    for step in happened:
        name = str(step.name)
        match step.kind:
            case "take" if name not in resting and found.take(seeker(name, PROJECTS[step.name % 3])):
                at_work.add(name)
            case "rest" if found.rest(name):
                at_work.remove(name)
                resting.add(name)
            case "again" if name in resting and found.take_again(name):
                resting.remove(name)
                at_work.add(name)
            case "leave":
                found.leave(name)
                at_work.discard(name)
                resting.discard(name)
            case _:
                pass
        assert len(at_work) <= places
        assert len(at_work) + len(resting) <= max(places, processes)
        assert {one for one in resting if found.rests(one)} == resting
    waiting = [one.effect_id for one in found.line()]
    for name in at_work | resting.difference(waiting):
        found.leave(name)
    order = list[str]()
    for _ in waiting:
        # Whoever waits in person asks again whenever something has changed.
        name = next(n for n in waiting if n not in order and (found.take_again(n) if n in resting else takes(found, n)))
        order.append(name)
        found.leave(name)
    assert [name in resting for name in order] == sorted((name in resting for name in waiting), reverse=True)


def takes(found: Places, name: str) -> bool:
    return found.take(seeker(name, PROJECTS[int(name) % 3]))


def test_the_places_are_counted_by_what_is_in_them() -> None:
    found = Places(2, 4)
    assert found.counts() == {"working": 0, "free": 2, "resting": 0, "waiting": 0}
    assert [found.take(seeker(name, "a")) for name in "xyz"] == [True, True, False]
    assert found.counts() == {"working": 2, "free": 0, "resting": 0, "waiting": 1}
    found.rest("x")
    assert found.counts() == {"working": 1, "free": 1, "resting": 1, "waiting": 1}
    found.leave("z")
    found.leave("y")
    assert found.counts() == {"working": 0, "free": 2, "resting": 1, "waiting": 0}
