"""
A model that says what it was told to: OpenAI's streaming chat completions on a loopback port, for real agents in tests.

A prompt tells it with a fenced block, the last one counting:

    ```scripted
    {"path": "hello.txt", "text": "hello\\n"}
    ```

It then calls the agent's `write` tool with that file, and after the tool's result says that it is done. Without a
block, or without tools (an agent that wants a title), it only talks.
"""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

BLOCK = re.compile(r"(?ms)^```scripted[ \t]*\n(.*?)\n```")
CLOSING = "The file is written."


class ScriptedModel:
    """The server, while the context is open. `requests` are the bodies that it got."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """What an agent's configuration calls the base URL."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def address(self) -> str:
        """What `reach` of agents.toml calls it."""
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the deltas of the answer to a request, the last with its finish reason."""
        self.requests.append(request)
        messages: list[dict[str, Any]] = request["messages"]
        offered: list[dict[str, Any]] = request.get("tools") or []
        tools = {str(tool["function"]["name"]) for tool in offered}
        told = file_of(messages)
        if "write" in tools and told and messages[-1]["role"] == "user":
            arguments = json.dumps({"filePath": told["path"], "content": told["text"]})
            call = {"name": "write", "arguments": arguments}
            yield {
                "role": "assistant",
                "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": call}],
            }
            yield {"finish_reason": "tool_calls"}
            return
        yield {"role": "assistant", "content": CLOSING if messages[-1]["role"] == "tool" else "Understood."}
        yield {"finish_reason": "stop"}


def file_of(messages: list[dict[str, Any]]) -> dict[str, str] | None:
    """Return the file that the last prompt with a block asks for."""
    for message in reversed(messages):
        parts: list[dict[str, Any]] | str = message.get("content") or ""
        text = parts if isinstance(parts, str) else "\n".join(str(part.get("text", "")) for part in parts)
        if message["role"] == "user" and (blocks := BLOCK.findall(text)):
            return json.loads(blocks[-1])
    return None


def handler_for(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    """Return a handler that answers from this model."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for delta in model.answer(request):
                reason = delta.pop("finish_reason", None)
                choice = {"index": 0, "delta": delta, "finish_reason": reason}
                chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": request["model"]}
                usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}} if reason else {}
                self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [choice], **usage})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler


def opencode_config(directory: Path, model: ScriptedModel) -> Path:
    """Write the configuration with which OpenCode talks to this model alone, and asks before it edits."""
    config = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["scripted"],
        "model": "scripted/model",
        "small_model": "scripted/model",
        "provider": {
            "scripted": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Scripted",
                "options": {"baseURL": model.url, "apiKey": "none"},
                "models": {
                    "model": {"name": "Model", "tool_call": True, "limit": {"context": 100_000, "output": 8_000}}
                },
            }
        },
        "permission": {"edit": "ask", "bash": "ask", "webfetch": "ask"},
    }
    path = directory / "opencode.json"
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    return path


def opencode_agent(directory: Path, model: ScriptedModel) -> dict[str, Any]:
    """Return OpenCode's table in agents.toml: its settings are copied into its home, and it reaches the model."""
    settings = {
        "path": str(opencode_config(directory, model)),
        "mode": "copy",
        "target": ".config/opencode/opencode.json",
    }
    return {"command": ["opencode", "acp"], "mounts": [settings], "reach": [model.address]}
