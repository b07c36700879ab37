"""`baton chat`: a conversation with a server, in a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console

from baton.config import ConfigError
from baton.event_lines import event_lines
from baton.tables import counted

HELP = "/router NAME chooses who writes, /think shows or hides reasoning, /new begins anew, /quit ends"


class Chat:
    """One conversation.

    Args:
        colours: of the writers.
    """

    def __init__(self, url: str, key: str, console: Console, colours: dict[str, str]):
        self._client = httpx.Client(
            base_url=url.rstrip("/"), headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(10.0, read=None),
        )  # fmt: skip
        self._console, self._colours = console, colours
        self._said: list[dict[str, str]] = []
        self.thinking = True
        self.names = self._names()
        self.model = self.names[0]

    def _names(self) -> list[str]:
        """Raises:
        ConfigError: there is no server, or it does not let us in.
        """
        try:
            reply = self._client.get("/v1/models")
        except httpx.HTTPError as error:
            raise ConfigError(
                f"url: {self._client.base_url} does not answer ({error}); start one by `baton serve`"
            ) from None
        if reply.status_code != 200:
            raise ConfigError(f"url: {self._client.base_url}: {_told(reply)}")
        try:
            names = [str(entry["id"]) for entry in reply.json()["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        if not names:
            raise ConfigError(f"url: {self._client.base_url} is no `baton serve`; give the address of one")
        return names

    def run(self, lines: Iterator[str]) -> None:
        """Answers one line after the other until they end."""
        self._console.print(f"{self.model} · {HELP}", style="dim", markup=False)
        for line in lines:
            text = line.strip()
            if text in ("/quit", "/exit"):
                return
            if text.startswith("/"):
                self._command(*text.partition(" ")[::2])
            elif text:
                self._ask(text)

    def _command(self, word: str, value: str) -> None:
        if word == "/new":
            self._said.clear()
        elif word == "/think":
            self.thinking = not self.thinking
        elif word == "/router" and value:
            self.model = f"{self.names[0].partition(':')[0]}:{value.strip()}"
            self._console.print(self.model, style="dim", markup=False)
        else:
            self._console.print(HELP, style="dim", markup=False)

    def _ask(self, text: str) -> None:
        asked = [*self._said, {"role": "user", "content": text}]
        body = {"model": self.model, "messages": asked, "stream": True, "writers": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        said, usage = "", None
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    reply.read()
                    self._console.print(_told(reply), style="bold red", markup=False)
                    return
                for event in _events(reply):
                    if "error" in event:
                        self._console.print(f"\n{event['error']['message']}", style="bold red", markup=False)
                        return
                    usage = event.get("usage") or usage
                    said += "".join(self._show(choice) for choice in event["choices"])
        except httpx.HTTPError as error:
            self._console.print(f"\nthe server went away ({error})", style="bold red", markup=False)
            return
        self._said = [*asked, {"role": "assistant", "content": said.strip()}]
        self._tell(usage)

    def _show(self, choice: dict[str, Any]) -> str:
        """Prints a piece in its writer's colour; returns what of it is the answer's."""
        delta = choice["delta"]
        style = self._colours.get(choice.get("writer", ""), "")
        if self.thinking and (thought := delta.get("reasoning_content")):
            self._console.print(thought, style=f"{style} italic dim", end="", markup=False)
        content: str = delta.get("content") or ""
        self._console.print(content, style=style, end="", markup=False)
        return content

    def _tell(self, usage: dict[str, Any] | None) -> None:
        self._console.print()
        # Another server may be spoken to as well, and has no relay to tell of.
        if usage is not None and (relay := usage.get("relay")):
            share = "-" if relay["target_share"] is None else f"{relay['target_share']:.0%}"
            self._console.print(
                f"target {relay['target_tokens']} + draft {relay['draft_tokens']} tokens (target share {share}) · "
                + counted(relay["switches"], "switch", "switches"), style="dim", markup=False,
            )  # fmt: skip


def _events(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in event_lines(reply):
        data = line.removeprefix("data: ")
        if line.startswith("data: ") and data != "[DONE]":
            yield json.loads(data)


def _told(reply: httpx.Response) -> str:
    try:
        said: str = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = f"it answers {reply.status_code}; is it a Baton server?"
    return said


def lines(console: Console) -> Iterator[str]:
    """What the user types, until Ctrl-D."""
    while True:
        try:
            yield console.input("[bold]> [/]" if console.is_terminal else "")
        except EOFError:
            return
