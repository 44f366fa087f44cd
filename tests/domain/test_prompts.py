"""What agents are told: every word that was said exactly once, and all of it to who knows nothing."""

from steersman.domain.work import turns
from steersman.tests.domain.fleet import Fleet, part


def test_a_first_prompt_tells_the_goal_the_part_and_what_is_there_already() -> None:
    fleet = Fleet(part("Dig the hole"), part("Plant the tree", 0))
    fleet.work(1)
    prompt = fleet.start(2)
    assert "Sell things" in prompt
    assert "# Your part: Plant the tree" in prompt
    assert "- Dig the hole" in prompt
    assert "Do not run git" in prompt


def test_a_first_prompt_tells_its_author_the_charter_of_their_own_and_nobody_elses() -> None:
    fleet = Fleet(part("One", agent="ann"), part("Two", agent="bob"))
    for subtask_id, name, other in ((1, "ann", "bob"), (2, "bob", "ann")):
        prompt = fleet.start(subtask_id)
        assert f"# Your charter\n\n# {name}\n\nYou are {name}, " in prompt
        assert f"You are {other}, " not in prompt


def test_who_takes_a_rejected_part_over_is_told_their_own_charter() -> None:
    fleet = Fleet(part("Write the tests", agent="ann")).to_gate(capabilities=())
    fleet.signal("rai", 1, words="Once more.")
    fleet.settle()
    author = fleet.subtask(1).assigned_agent
    assert author != "ann"
    assert f"# Your charter\n\n# {author}\n" in fleet.work(1, capabilities=())


def test_a_revision_tells_every_round_once_the_newest_last() -> None:
    fleet = Fleet(part("One")).to_gate()
    for n in (1, 2, 3):
        fleet.request_changes(1, words=f"Round {n}.")
        fleet.settle()
        prompt = fleet.work(1)
        assert [prompt.count(f"Round {k}.") for k in (1, 2, 3)] == [int(k <= n) for k in (1, 2, 3)]
        assert prompt.index(f"Round {n}.") == max(prompt.index(f"Round {k}.") for k in range(1, n + 1))
        fleet.assemble()


def test_a_fresh_child_is_told_every_round_once_and_its_task() -> None:
    fleet = Fleet(part("Paint")).to_gate(capabilities=())
    for n in (1, 2, 3):
        fleet.signal("rai", 1, words=f"Round {n}.")
        fleet.settle()
        prompt = fleet.work(1, capabilities=())
        assert [prompt.count(f"Round {k}.") for k in (1, 2, 3)] == [int(k <= n) for k in (1, 2, 3)]
        assert "# Your part: Paint" in prompt
        fleet.assemble()


def test_advice_is_no_feedback_for_anybody() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.signal("rai", 1, severity="advisory", words="Nice weather.")
    fleet.settle()
    fleet.request_changes(1, words="Better.")
    fleet.settle()
    assert "Nice weather." not in fleet.work(1)


def test_feedback_for_another_subtask_is_not_told() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    fleet.request_changes(1, words="For one.")
    fleet.settle()
    fleet.work(1)
    fleet.assemble()
    fleet.request_changes(2, words="For two.")
    fleet.settle()
    assert "For one." not in fleet.work(2)


def test_each_verb_has_words_of_its_own() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    for verb in ("guidance", "redirect"):
        fleet.command(verb, 1, words=f"By {verb}.")
    for verb in ("send", "amend"):
        fleet.steer(verb, 1, words=f"By {verb}.")
    fleet.settle()
    fleet.end(1, stop_reason="cancelled")
    prompt = fleet.open_turn(1) or ""
    headings = [line for line in prompt.splitlines() if line.startswith("# ")]
    assert len(headings) == len(set(headings)) == 4
    assert [prompt.count(f"By {verb}.") for verb in ("guidance", "redirect", "send", "amend")] == [1, 1, 1, 1]


def test_guidance_before_the_first_turn_is_part_of_it_and_told_once() -> None:
    fleet = Fleet(part("One"))
    fleet.command("guidance", 1, words="Use metres.")
    fleet.settle()
    prompt = fleet.start(1)
    assert prompt.count("Use metres.") == 1
    assert "# Your part: One" in prompt


def test_a_resumed_agent_is_told_to_go_on() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    pause = fleet.command("pause", 1)
    fleet.settle()
    fleet.put(turns.end_turn(fleet.run, fleet.child_id(1), "cancelled"))
    fleet.confirm_pause(pause)
    resume = fleet.command("resume", 1)
    fleet.settle()
    fleet.confirm_resume(resume)
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.commit()))
    assert (fleet.open_turn(1) or "").count("You were paused") == 1
    fleet.put(turns.start_turn(fleet.run, fleet.child_id(1)))
    fleet.settle()
    assert fleet.directive(resume).status == "applied"


def test_a_session_that_knows_nothing_is_told_what_the_lost_one_was_and_nothing_that_comes_later() -> None:
    fleet = Fleet(part("Paint")).to_gate()
    fleet.request_changes(1, words="Round 1.")
    fleet.settle()
    fleet.work(1)
    fleet.assemble()
    fleet.request_changes(1, words="Round 2.")
    fleet.settle()
    fleet.start(1)
    fleet.command("guidance", 1, words="Later.")
    fleet.settle()
    prompt = turns.prompt_anew(fleet.run, fleet.child_id(1))
    turn = fleet.child(1).turn
    assert turn is not None
    assert prompt.startswith(f"Steersman-Turn: {turn.turn_id}\n")
    assert "# Your part: Paint" in prompt
    assert [prompt.count(words) for words in ("Round 1.", "Round 2.", "Later.")] == [1, 1, 0]
