"""What the demo works on: a small repository, and a plan whose second and third part need the first, and the fourth both."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..refused import Refused

GOAL = "Greet people in two languages, and say in the README how."
#: The files that the four parts write: who sees them all in the repository has seen everybody's work merged.
FILES = ("greetings/words.py", "greetings/english.py", "greetings/german.py", "README.md")

README = "# Greetings\n\nA library that greets people.\n"
WORDS = 'def greet(word: str, name: str) -> str:\n    """Return a greeting."""\n    return f"{word}, {name}!"\n'
ENGLISH = "from .words import greet\n\n\ndef hello(name: str) -> str:\n"
GERMAN = "from .words import greet\n\n\ndef hallo(name: str) -> str:\n"
USAGE = "\n## Usage\n\n    greetings.english.hello('Ada')\n    greetings.german.hallo('Ada')\n"


def make_repository(path: Path) -> None:
    """On return a git repository with one commit on `main` is there. Raises Refused."""
    path.mkdir(parents=True)
    (path / "README.md").write_text(README, encoding="utf-8")
    git(path, "init", "--quiet")
    git(path, "symbolic-ref", "HEAD", "refs/heads/main")
    git(path, "config", "user.name", "Demo")
    git(path, "config", "user.email", "demo@localhost")
    git(path, "add", "README.md")
    git(path, "-c", "commit.gpgsign=false", "commit", "--quiet", "-m", "Began a library that greets people")


def git(path: Path, *arguments: str) -> str:
    """Return what git prints. Raises Refused when it is missing or fails."""
    try:
        done = subprocess.run(["git", "-C", str(path), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Refused("The demo needs `git` on PATH, to make a repository and to show its history.") from error
    if done.returncode:
        raise Refused(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def plan() -> Mapping[str, Any]:
    """Return the plan as the API takes it. Each part tells the built-in agent what to do, step by step."""
    return {
        "subtasks": [
            _part("Write what every greeting needs", [], {"write": {"path": FILES[0], "text": WORDS}}),
            _part(
                "Greet in English",
                [0],
                {"write": {"path": FILES[1], "text": ENGLISH}},
                {"append": {"path": FILES[1], "text": _body("Hello"), "times": 1, "every_ms": 900}},
            ),
            _part(
                "Greet in German",
                [0],
                {"write": {"path": FILES[2], "text": GERMAN}},
                {"append": {"path": FILES[2], "text": _body("Hallo"), "times": 1, "every_ms": 1400}},
            ),
            _part("Say in the README how to greet", [1, 2], {"append": {"path": FILES[3], "text": USAGE}}),
        ]
    }


def _body(word: str) -> str:
    return f'    """Greet somebody."""\n    return greet({word!r}, name)\n'


def _part(title: str, needs: list[int], *work: Mapping[str, Any]) -> dict[str, Any]:
    steps = [{"say": f"{title}: I begin. "}, {"sleep_ms": 600}, *work, {"say": "Done."}]
    return {
        "title": title,
        "scope": f"{title}.\n\n```rehearsal\n{json.dumps(steps)}\n```\n",
        "dependsOn": needs,
    }
