"""What the rehearsal agent is told to do: the steps in a prompt, or, without any, what it does of its own accord."""

import json
import re
from typing import Any, cast

#: The words that the service puts into every prompt, so that a turn is known again.
TURN_LINE = re.compile(r"(?m)(?:^Steersman-Turn:[ \t]*(\S+)[ \t]*$|\[turn ([^\]\s]+)\])")
#: The line by which a prompt names the part that is to be done.
PART_LINE = re.compile(r"(?m)^# Your part: (.*\w.*)$")
ROLE_LINE = re.compile(r"(?m)^Steersman-Role:[ \t]*(\S+)[ \t]*$")
FENCE = re.compile(r"(?ms)^(?P<fence>`{3,}|~{3,})rehearsal[ \t]*\n(?P<body>.*?)^(?P=fence)[`~]*[ \t]*$")
STEPS = frozenset(
    {"write", "append", "delete", "say", "sleep_ms", "usage", "tool", "ask", "echo_prompt", "run", "flood", "steps"}
    | {"hang", "spawn", "crash", "fail", "end", "verdict", "plan", "outcome", "answer"}
)
#: Roles that read prompts in which others are told what to do: the only steps that are meant for them.
MEANT_FOR = {"outcome-writer": {"outcome", "hang", "sleep_ms"}, "autopilot": {"answer", "hang", "sleep_ms"}}
TITLE_CHARACTERS = 72
SLUG_CHARACTERS = 48


class ScriptInvalid(ValueError):
    """The prompt's rehearsal block is no list of steps; the message says what is wrong."""


def turn_of(prompt: str) -> str:
    """Return the id of the turn that a prompt belongs to, empty if it names none."""
    found = TURN_LINE.findall(prompt)
    return (found[-1][0] or found[-1][1]) if found else ""


def steps_of(prompt: str) -> list[dict[str, Any]] | None:
    """Return the steps of the last rehearsal block, None without one. Raises ScriptInvalid."""
    blocks = [match["body"] for match in FENCE.finditer(prompt)]
    if not blocks:
        return None
    try:
        decoded: object = json.loads(blocks[-1])
    except ValueError as error:
        raise ScriptInvalid(f"the rehearsal block is not JSON: {error}") from error
    if not isinstance(decoded, list):
        raise ScriptInvalid("the rehearsal block is not a JSON array of steps")
    for number, step in enumerate(cast("list[object]", decoded)):
        if not isinstance(step, dict) or not STEPS & cast("dict[str, Any]", step).keys():
            raise ScriptInvalid(f"step {number} is none of {', '.join(sorted(STEPS))}")
    return _meant_for(prompt, cast("list[dict[str, Any]]", decoded))


def _meant_for(prompt: str, steps: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    role = ROLE_LINE.search(prompt)
    names = MEANT_FOR.get(role[1]) if role else None
    if names is None:
        return steps
    kept = [step for step in steps if names & step.keys()]
    return kept if any({"outcome", "answer"} & step.keys() for step in kept) else None


def own_steps(prompt: str) -> list[dict[str, Any]]:
    """Return what the agent does when it is told nothing: a page about its task, or the answer of its role."""
    role = ROLE_LINE.search(prompt)
    # Whoever plans or judges is told the goal under a heading of its own; the rest says how to answer.
    goal = prompt.partition("\n# The goal\n")[2].partition("\n# ")[0] if role else ""
    title = title_of(goal) if goal else title_of(prompt)
    slug = slug_of(title)
    match role[1] if role else "":
        case "planner":
            return [
                {
                    "plan": [
                        {
                            "title": title,
                            "scope": prompt_body(goal or prompt),
                            "dependsOn": [],
                            "files": [f"rehearsal/{slug}.md"],
                        }
                    ]
                }
            ]
        case "reviewer" | "rai-reviewer" | "rubberduck":
            return [
                {"verdict": "GREEN", "feedback": f"I read what was made for “{title}” and found nothing to correct."}
            ]
        case "outcome-writer":
            return [{"outcome": outcome_of(title)}]
        case "autopilot":
            return [{"answer": "Do what the goal asks for, in the simplest way."}]
        case _:
            path = f"rehearsal/{slug}.md"
            return [{"write": {"path": path, "text": page(title, prompt)}}, {"say": f"I wrote {path}."}]


def outcome_of(title: str) -> dict[str, Any]:
    """Return what a writer makes of a task without looking at anything."""
    return {
        "desiredOutcome": f"“{title}” is done, and somebody can see that it is.",
        "scope": "The files that the task names; nothing else.",
        "assumptions": "The repository is as the task expects it.",
    }


def title_of(prompt: str) -> str:
    """Return the task in one line: the part that the prompt names, or its first line that says something."""
    body = prompt_body(prompt)
    part = PART_LINE.search(body)
    for line in part.groups() if part else body.splitlines():
        title = line.strip().lstrip("#>*- ").strip()
        if re.search(r"\w", title):
            return title if len(title) <= TITLE_CHARACTERS else title[: TITLE_CHARACTERS - 1].rstrip() + "…"
    return "An untitled task"


def slug_of(title: str) -> str:
    """Return the title as a file's name."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower())[:SLUG_CHARACTERS].strip("-")
    return slug or "task"


def prompt_body(prompt: str) -> str:
    """Return the prompt without the lines that are meant for programs."""
    kept = [line for line in FENCE.sub("", prompt).splitlines() if not line.startswith("Steersman-")]
    return TURN_LINE.sub("", "\n".join(kept)).strip()


def page(title: str, prompt: str) -> str:
    """Return the page that stands for the work: the same for the same prompt."""
    task = "\n".join(f"> {line}".rstrip() for line in prompt_body(prompt).splitlines())
    return (
        f"# {title}\n\n"
        "The rehearsal agent needs no model: it wrote this page where a coding agent would have worked.\n\n"
        f"## What was asked for\n\n{task}\n\n"
        "## What happens next\n\n"
        "- This page is committed on the branch of its run.\n"
        "- Assembly takes the branches of all runs together.\n"
        "- A person reviews the whole, steers it, or merges it.\n"
    )


def verdict_text(step: dict[str, Any]) -> str:
    """Return a reviewer's answer: the feedback, the files that it is about, and the verdict on the last line."""
    lines = [str(step.get("feedback", ""))] if step.get("feedback") else []
    if files := step.get("target_files"):
        lines.append("TARGET_FILES: " + ", ".join(map(str, files)))
    return "\n".join([*lines, f"VERDICT: {step['verdict']}"])


def fenced_text(value: object) -> str:
    """Return a planner's or a writer's answer: a fenced block of JSON."""
    # A longer fence than any in it, so that a scope may hold a fenced block itself.
    body = json.dumps(value, indent=2, ensure_ascii=False)
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{body}\n{fence}"
