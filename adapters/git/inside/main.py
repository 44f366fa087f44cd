"""Runs one of our programs inside a box, by its name: what it is asked comes in as JSON, a line of JSON comes out, then a pack."""

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def main() -> None:
    """Answer one request. What cannot be done is answered, too: only a fault of ours is an exit code."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    run: Callable[[Any], None] = import_module(f"inside.{sys.argv[1]}").run
    failed: type[Exception] = import_module("inside.shell").Failed
    request: Any = json.load(sys.stdin.buffer)
    try:
        run(request)
    except failed as error:
        code, message = error.args
        print(json.dumps({"error": code, "message": message[:16_000]}), flush=True)


main()
