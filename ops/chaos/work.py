"""The work that is orchestrated: small plans for the rehearsal agent, drawn by chance."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

#: Makes the build fail for as long as it is in a file of its own: the gate that charges the budgets.
BROKEN = "broken.txt"
BUILD = ["sh", "-c", f"! test -e {BROKEN}"]

Step = Mapping[str, Any]


def block(steps: Sequence[Step]) -> str:
    """Return steps as the rehearsal agent finds them in its prompt."""
    return f"\n```rehearsal\n{json.dumps(steps)}\n```\n"


def orchestration(chance: random.Random, number: int) -> dict[str, Any]:
    """Return the request that starts an orchestration with its plan. Its goal is no other's."""
    count = chance.choice((1, 2, 2, 2, 3))
    parts: list[dict[str, Any]] = []
    for index in range(count):
        needs = [index - 1] if index and chance.random() < 0.3 else []
        scope = f"Part {index + 1} of orchestration {number}." + block(_steps(chance, number, index))
        parts.append({"title": f"part {index + 1}", "scope": scope, "dependsOn": needs})
    return {
        "goal": f"Orchestration number {number:04}.",
        "start_mode": "direct",
        "plan": {"subtasks": parts},
        "auto_approve_tools": chance.random() < 0.7,
        "autopilot": chance.random() < 0.5,
    }


def corrected(chance: random.Random, mark: str) -> str:
    """Return the words of a correction, with what the agent is to do about it."""
    steps: list[Step] = [{"append": {"path": f"corrections/{mark}.txt", "text": f"{mark}\n"}}]
    odd = chance.random()
    if odd < 0.06:
        # Fails before it shows a sign of work, up to as often as an effect may fail.
        steps = [{"fail": "not today"}] * chance.randint(1, 3) + steps
    elif odd < 0.12:
        steps = [{"crash": {"exit": 3}}, *steps]
    elif odd < 0.2:
        steps.append({"delete": {"path": BROKEN}})
    elif odd < 0.5:
        steps.append(_slow(chance, f"corrections/{mark}.log"))
    elif odd < 0.6:
        return f"{mark} Think it over."
    return f"{mark} Do it better.{block(steps)}"


def _steps(chance: random.Random, number: int, index: int) -> list[Step]:
    name = f"work/{number:04}-{index + 1}"
    steps: list[Step] = [{"say": "I begin."}, {"write": {"path": f"{name}.txt", "text": f"{name}\n"}}]
    steps.append(_slow(chance, f"{name}.log"))
    odd = chance.random()
    if odd < 0.12:
        steps.append({"append": {"path": "shared.txt", "text": f"{name}\n"}})
    elif odd < 0.2:
        steps.append({"write": {"path": BROKEN, "text": "broken\n"}})
    elif odd < 0.26:
        steps.append({"crash": {"exit": 4}})
    elif odd < 0.3:
        steps.append({"fail": "I cannot do this"})
    elif odd < 0.4:
        steps.append({"tool": {"name": "web_fetch", "input": {"url": "about:blank"}}})
    elif odd < 0.48:
        steps.append({"spawn": {"path": f"{name}.canary", "every_ms": 200, "detached": True}})
    elif odd < 0.52:
        steps.append({"hang": {}})
    steps.append({"usage": {"input": 10, "output": 5}})
    return steps


def _slow(chance: random.Random, path: str) -> Step:
    append = {
        "path": path,
        "text": "a line\n",
        "times": chance.randint(2, 30),
        "every_ms": chance.choice((20, 60, 120)),
    }
    return {"append": append}
