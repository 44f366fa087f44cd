"""
Runs one of our programs inside a box, by its name: it is asked something, a line of JSON comes out, then perhaps a pack.

What these programs import is a good part of what a box costs, so there is no `json`, `re`, `subprocess` or `typing` here.
What is asked comes in as `marshal` has it, from the same Python and from nobody but us.
"""

from __future__ import annotations

import marshal
import os
import sys
from importlib import import_module


def main() -> None:
    """Answer one request. What cannot be done is answered, too: only a fault of ours is an exit code."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    run = import_module(f"inside.{sys.argv[1]}").run
    shell = import_module("inside.shell")
    try:
        run(marshal.load(sys.stdin.buffer))
    except shell.Failed as error:
        code, message = error.args
        shell.answer({"error": code, "message": message[:16_000]})


main()
