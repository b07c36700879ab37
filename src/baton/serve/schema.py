"""The fields of a request: those that are kept, those that are ignored, and those that are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from baton.config import ConfigError, Strict, validate
from baton.serve.errors import RefusedError, bad_request

M = TypeVar("M", bound=Strict)

IGNORED = frozenset(
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
     "prompt_cache_retention", "spaces_between_special_tokens", "request_id"]
)  # fmt: skip
"""Fields that change nothing about an answer here."""

NO_TOOLS = "no router keeps an answer to a tool's form; leave it out"
NO_FORMAT = "no router keeps an answer to a form; ask for the form in the prompt"
NO_PENALTY = "a penalty would have to hold for both models' tokens, which engines do not do; leave it out"
NO_TOKENS = "an answer ends where its text does; leave it out"
NO_LIST = "it is of one model's tokens, and two write; leave it out"
NO_IDS = "two models write, whose ids may differ; leave it out, or ask for the trace, which has each model's"

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "tools": (([],), NO_TOOLS),
    "tool_choice": (("none", "auto"), NO_TOOLS),
    "functions": (([],), NO_TOOLS),
    "function_call": (("none", "auto"), NO_TOOLS),
    "response_format": (({"type": "text"},), NO_FORMAT),
    "guided_json": ((), NO_FORMAT),
    "guided_regex": ((), NO_FORMAT),
    "guided_choice": ((), NO_FORMAT),
    "guided_grammar": ((), NO_FORMAT),
    "structured_outputs": ((), NO_FORMAT),
    "presence_penalty": ((0,), NO_PENALTY),
    "frequency_penalty": ((0,), NO_PENALTY),
    "repetition_penalty": ((1,), NO_PENALTY),
    "logit_bias": (({},), NO_LIST),
    "allowed_token_ids": ((), NO_LIST),
    "bad_words": (([],), NO_LIST),
    "logits_processors": (([],), NO_LIST),
    "length_penalty": ((1,), NO_PENALTY),
    "best_of": ((1,), "choosing among answers is a router's work; use the router best-of-n or majority"),
    "use_beam_search": ((False,), "choosing among answers is a router's work; use the router beam"),
    "early_stopping": ((False,), "choosing among answers is a router's work; use the router beam"),
    "echo": ((False,), "the prompt is not sent back; leave it out"),
    "suffix": (("",), "text is only written after a prompt; leave it out"),
    "prompt_logprobs": ((0,), "prompts are not scored; leave it out"),
    "ignore_eos": ((False,), NO_TOKENS),
    "min_tokens": ((0,), NO_TOKENS),
    "stop_token_ids": (([],), "ids are of one model, and two write; use stop, which is text"),
    "include_stop_str_in_output": ((False,), "an answer ends before the text that stops it; leave it out"),
    "continue_final_message": ((False,), "an answer is a turn of its own; use /v1/completions to go on with a text"),
    "add_generation_prompt": ((True,), "an answer is a turn of its own; use /v1/completions to go on with a text"),
    "add_special_tokens": ((), "each model's own are put before a text and none into a chat; leave it out"),
    "skip_special_tokens": ((True,), "special tokens are no text of an answer; leave it out"),
    "detokenize": ((True,), "an answer is sent as text; leave it out"),
    "return_token_ids": ((False,), NO_IDS),
    "return_tokens_as_token_ids": ((False,), NO_IDS),
    "include_reasoning": ((True,), "reasoning stands apart in reasoning_content; leave that unread"),
    "thinking_token_budget": ((), "the pair's answer_reserve bounds the thinking; leave it out, or lower max_tokens"),
    "truncate_prompt_tokens": ((), "a prompt is read whole; shorten it"),
    "chat_template": ((), "each model has its own; leave it out, or send a text to /v1/completions"),
    "documents": (([],), "chat templates are given messages only; put them there"),
    "priority": ((0,), "clients take turns; leave it out"),
    "cache_salt": ((), "caches are shared by all clients of a server; leave it out"),
    "verbosity": (("medium",), "length is the models' affair; ask for it in the prompt"),
    "modalities": ((["text"],), "the models write text only; leave it out"),
    "audio": ((), "the models write text only; leave it out"),
    "prediction": ((), "speculation is the engine's, set in the pair; leave it out"),
    "web_search_options": ((), "there is no search here; leave it out"),
    "reasoning_effort": (("none",), "effort is the router's; use the model's name, or none for no thinking"),
}
"""Fields that nothing here can keep: the values at which they ask for nothing, and what to do instead."""

Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]

SEVERAL_KINDS: Mapping[str, str] = {
    "prompt": "give a text, token ids of the target, or a list of either",
    "stop": "give a text of 1 to 256 characters, or up to 16 of them",
}
"""Fields of more than one kind, and what they may be."""


class StreamOptions(BaseModel):
    """Of a stream."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    include_usage: bool = False
    """Send what the answer cost in a last event without choices."""
    continuous_usage_stats: bool = False
    """Beside it, send with each event the tokens of its answer so far."""


class TemplateOptions(Strict):
    """What the chat templates are asked for."""

    enable_thinking: bool = True


class Asked(Strict):
    """What both kinds of request have in common."""

    model: str = Field(default="", max_length=512)
    """`PAIR`, `PAIR:ROUTER`, `PAIR:ROUTER@VALUE` (of its main knob), or the label of an arm."""
    n: int | None = Field(default=None, ge=1)
    """Answers to a prompt."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    """Texts before which the answer ends; in a chat the reasoning is not searched."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    """The pair's, if left out; likewise the other three."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    router: str | None = Field(default=None, max_length=512)
    """In place of the one in the model's name."""
    knobs: dict[str, Any] | None = None
    """The router's, by name."""
    trace: bool = False
    """Send the whole record of the answer beside it (also by the header `X-Baton-Trace: 1`)."""
    writers: bool = False
    """Say of each piece of a stream which model wrote it."""
    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds from arrival to the answer's end, if that is less than the server allows."""

    @property
    def stops(self) -> tuple[str, ...]:
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    type: Literal["text", "input_text", "output_text"]
    text: str


class Message(BaseModel):
    """A turn of a conversation."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(Asked):
    """Body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """As `max_tokens`, before which it goes."""
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    chat_template_kwargs: TemplateOptions | None = None
    reasoning_effort: Literal["none"] | None = None


class CompletionRequest(Asked):
    """Body of `/v1/completions`."""

    prompt: str | list[str] | list[StrictInt] | list[list[StrictInt]]
    """Text, or token ids of the target."""
    logprobs: int | None = Field(default=None, ge=0, le=20)


def parse(model: type[M], data: Any) -> M:
    """A request's body as its fields.

    Raises:
        RefusedError: a field is wrong, unknown, or cannot be kept.
    """
    if not isinstance(data, dict):
        raise bad_request('body: it is no JSON object; send the fields as {"model": ..., ...}')
    kept = {}
    for name, value in data.items():
        # Some clients send every field that they know, most of them as null.
        if value is None:
            continue
        if name in REFUSED and not _asks_for_nothing(name, value):
            raise bad_request(f"{name}: {_shown(value)} cannot be kept: {REFUSED[name][1]}", name, "unsupported")
        if name in model.model_fields or (name not in REFUSED and name not in IGNORED):
            kept[name] = value
    try:
        return validate(model, kept, "request")
    except ConfigError as error:
        line = str(error).splitlines()[0].removeprefix("request: ")
        where = line.partition(":")[0]
        name = where.partition(".")[0].partition("[")[0]
        if name in SEVERAL_KINDS and name in kept:
            where, line = name, f"{name}: {_shown(kept[name])} cannot be used; {SEVERAL_KINDS[name]}"
        raise bad_request(line, where) from None


def _asks_for_nothing(name: str, value: Any) -> bool:
    neutral = REFUSED[name][0]
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def refuse_messages(data: Any) -> None:
    """Says by name what a message has that no model here takes: tools and anything but text.

    Raises:
        RefusedError: there is such a thing.
    """
    messages = data.get("messages") if isinstance(data, dict) else None
    for n, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        if message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            raise bad_request(
                f"messages[{n}]: tools are not kept here; leave their turns out", "messages", "unsupported"
            )
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in ("image_url", "input_audio", "file", "video_url", "refusal"):
                raise bad_request(
                    f"messages[{n}]: a part of type {kind!r} cannot be read; the models take text only", "messages",
                    "unsupported",
                )  # fmt: skip


__all__ = ["ChatRequest", "CompletionRequest", "Message", "RefusedError", "parse", "refuse_messages"]
