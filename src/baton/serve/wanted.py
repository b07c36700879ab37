"""What a request asks for, in the engine's words: prompts, options, a router, and how the answer is sent."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.engines.base import EngineError, Sampling
from baton.generation import Budget, Options, Router
from baton.pair import Pair
from baton.serve.catalogue import Catalogue
from baton.serve.errors import bad_request
from baton.serve.schema import Asked, ChatRequest, CompletionRequest, Message, StreamOptions
from baton.serve.settings import ServeSettings
from baton.trace import Role
from baton.vocabulary import THINK_END, THINK_START

Prompts = dict[Role, list[int]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One text to go on from."""

    question: str
    """What scorers take for the question: the last turn, or all of a text."""
    ids: Prompts
    """Token ids by role."""
    thinking: bool
    """Whether the answer begins with a thinking phase."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that can be kept."""

    model: str
    chat: bool
    prompts: Sequence[Prompt]
    n: int
    router: Router
    options: Options
    stops: tuple[str, ...]
    stream: bool
    usage: bool
    """Whether a stream ends with what it cost."""
    running_usage: bool
    """Whether each event of a stream has the tokens of its answer so far."""
    trace: bool
    writers: bool
    logprobs: int | None
    """Likeliest tokens told of each token; None for no log-probabilities at all."""
    deadline_s: float

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n


class Reader:
    """Turns requests into what they ask for."""

    def __init__(self, pair: Pair, defaults: Options, catalogue: Catalogue, settings: ServeSettings):
        """`defaults` is how the pair's answers are generated where a request does not say."""
        self._pair, self._defaults = pair, defaults
        self._catalogue, self._settings = catalogue, settings
        self._lead = next(iter(pair.engines))

    def chat(self, asked: ChatRequest) -> Wanted:
        """Raises:
        RefusedError: it cannot be kept.
        """
        off = asked.reasoning_effort == "none"
        if asked.chat_template_kwargs is not None:
            off = off or not asked.chat_template_kwargs.enable_thinking
        thinking = self._defaults.thinking and not off
        logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        if asked.top_logprobs and not asked.logprobs:
            raise bad_request("top_logprobs: it goes with logprobs: true; set that, or drop it", "top_logprobs")
        prompt = self._conversation(asked.messages, thinking)
        most = asked.max_completion_tokens or asked.max_tokens
        budget = self._budget("messages", [prompt], most, self._defaults.budget.answer_reserve if thinking else 0)
        return self._wanted(asked, True, [prompt], budget, logprobs)

    def completion(self, asked: CompletionRequest) -> Wanted:
        """Raises:
        RefusedError: it cannot be kept.
        """
        given = asked.prompt
        one = isinstance(given, str) or (given and isinstance(given[0], int))
        several: Sequence[str | list[int]] = [given] if one else given  # type: ignore[list-item,assignment]
        if not several:
            raise bad_request("prompt: it is empty; give a text", "prompt")
        self._check_count(len(several), asked.n or 1)
        prompts = [self._text(one) for one in several]
        # Nothing is kept back: where a text's thinking ends is the model's affair.
        budget = self._budget("prompt", prompts, asked.max_tokens, 0)
        return self._wanted(asked, False, prompts, budget, asked.logprobs)

    def _wanted(
        self, asked: Asked, chat: bool, prompts: Sequence[Prompt], budget: Budget, logprobs: int | None
    ) -> Wanted:
        n = asked.n or 1
        self._check_count(len(prompts), n)
        router = self._catalogue.router(asked.model, asked.router, asked.knobs)
        if logprobs is not None and getattr(router, "takes_tokens", False):
            raise bad_request(
                f"logprobs: router {router.name!r} takes tokens from a scoring pass, of which there are none; "
                "leave it out, or use another router", "logprobs", "unsupported",
            )  # fmt: skip
        options = replace(
            self._defaults, sampling=self._sampling(asked), budget=budget,
            # The likeliest token is read in any case: the sampled one's own comes with it.
            top=0 if logprobs is None else max(1, logprobs),
        )  # fmt: skip
        options = replace(options, seed=self._seed(asked, options))
        deadline = min(asked.deadline_s or self._settings.deadline_s, self._settings.deadline_s)
        of_stream = asked.stream_options or StreamOptions()
        return Wanted(
            asked.model or self._pair.name, chat, prompts, n, router, options, asked.stops, bool(asked.stream),
            of_stream.include_usage, of_stream.include_usage and of_stream.continuous_usage_stats, asked.trace,
            asked.writers, logprobs, deadline,
        )  # fmt: skip

    def _check_count(self, prompts: int, n: int) -> None:
        most = min(self._settings.choices, self._settings.slots)
        if prompts * n > most:
            field, remedy = ("prompt", "send fewer at once") if prompts > 1 else ("n", "lower it")
            raise bad_request(
                f"{field}: {prompts * n} answers to one request are more than this server's {most}; {remedy}", field
            )

    def _sampling(self, asked: Asked) -> Sampling:
        default = self._defaults.sampling
        return Sampling(
            default.temperature if asked.temperature is None else asked.temperature,
            default.top_p if asked.top_p is None else asked.top_p,
            default.top_k if asked.top_k is None else max(0, asked.top_k),
            default.min_p if asked.min_p is None else asked.min_p,
        )

    def _seed(self, asked: Asked, options: Options) -> int:
        """Without a seed a greedy answer repeats, and a sampled one is drawn anew."""
        if asked.seed is not None:
            return asked.seed
        return self._defaults.seed if options.sampling.temperature == 0 else secrets.randbits(62)

    # Prompts --------------------------------------------------------------------------------------------------------

    def _conversation(self, messages: Sequence[Message], thinking: bool) -> Prompt:
        if messages[-1].role == "assistant":
            raise bad_request("messages: the last is from 'assistant'; end with the user's turn", "messages")
        turns = [_turn(message) for message in messages]
        if self._defaults.system and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self._defaults.system})
        try:
            ids = {role: engine.render(turns, thinking=thinking) for role, engine in self._pair.engines.items()}
        except EngineError as error:
            raise bad_request(f"messages: {error}", "messages") from None
        return Prompt(messages[-1].text, ids, thinking)

    def _text(self, given: str | Sequence[int]) -> Prompt:
        words = self._pair.engines[self._lead].vocabulary
        if not given:
            raise bad_request("prompt: it is empty; give a text", "prompt")
        if isinstance(given, str):
            text = given
            ids = {
                role: [*engine.vocabulary.begin, *engine.vocabulary.encode(text)]
                for role, engine in self._pair.engines.items()
            }
        else:
            if any(not 0 <= i < len(words) for i in given):
                raise bad_request(f"prompt: token ids of the target are 0 to {len(words) - 1}; check them", "prompt")
            text = words.text_of(given)
            ids = {r: words.translate(given, e.vocabulary) for r, e in self._pair.engines.items()}
        if any(not of_role for of_role in ids.values()):
            raise bad_request("prompt: it has no token; give a text", "prompt")
        # A text that has just closed its thinking goes on with the answer.
        return Prompt(text, ids, self._defaults.thinking and not text.rstrip().endswith(THINK_END))

    def _budget(self, field: str, prompts: Sequence[Prompt], asked: int | None, reserve: int) -> Budget:
        """Kept tokens that an answer may have: what is asked for, or the pair's own number where there is room.

        `field` has the prompts.
        """
        longest = max(len(ids) for prompt in prompts for ids in prompt.ids.values())
        sizes = [e.context for e in self._pair.engines.values() if e.context is not None]
        left = min(sizes) - longest if sizes else None
        if left is not None and left < 1:
            raise bad_request(
                f"{field}: {longest} tokens do not fit the models' {min(sizes)}; shorten it", field,
                "context_length_exceeded",
            )  # fmt: skip
        most = self._settings.max_tokens
        for limit, what in ((left, "what the models' context leaves"), (most, "this server's limit")):
            if asked is not None and limit is not None and asked > limit:
                raise bad_request(
                    f"max_tokens: {asked} is above {limit}, {what}; lower it", "max_tokens", "context_length_exceeded"
                )
        tokens = min(n for n in (asked or self._defaults.budget.tokens, left, most) if n is not None)
        return Budget(tokens, min(reserve, tokens // 2))


def _turn(message: Message) -> dict[str, str]:
    """A turn as chat templates take it: what was thought apart from what was said.

    Each template keeps or drops the thinking of earlier turns as its model was trained; one that knows nothing of
    thinking sees what was said alone.
    """
    role = "system" if message.role == "developer" else message.role
    if role != "assistant":
        return {"role": role, "content": message.text}
    thought, said = message.reasoning_content or message.reasoning or "", message.text
    if THINK_END in said:
        before, _, said = said.rpartition(THINK_END)
        thought = thought or before.removeprefix(THINK_START).strip("\n")
        said = said.lstrip("\n")
    turn = {"role": role, "content": said}
    return {**turn, "reasoning_content": thought} if thought else turn
