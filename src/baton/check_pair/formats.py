"""What tokenizers, chat templates and generation configs say of a pair. No weights are read.

Published relays were run on prompts that their templates had bent without anyone noticing: an opened thinking that is
gone from the second segment on, a line break that renders as backslash and n, a backspace in place of `\\b`, an empty
turn of the assistant. Each of these is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from baton.config import ModelConfig, PairConfig, located
from baton.vocabulary import THINK_END, THINK_START, Vocabulary

QUESTION = "What is 2 plus 3?"
MARK = "carrot"
"""Stands in parts of a sample conversation, to see which of them a template drops."""
SHOWN = 5
"""Differences between two vocabularies that are listed."""


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """How one model wants to be asked, and how it ends things."""

    model: str
    architecture: str
    tokens: int
    """Of the tokenizer."""
    vocab_size: int
    """Rows of the model's matrices; those beyond `tokens` are padding."""
    context: int | None
    end_of_text: dict[str, list[str]]
    """Literals by source: `tokenizer`, `generation_config`."""
    sampling: dict[str, Any]
    """What the generation config recommends."""
    chat_template: bool
    prompt: str
    """A sample question, rendered with thinking asked for."""
    prompt_without: str
    """The same without."""
    thinking: str
    """`template` (the prompt opens it), `model` (the model writes the opening itself) or `none`."""
    switch: bool
    """Whether asking for no thinking changes the prompt."""
    end_of_thinking: str
    """`token`, `text` (several tokens) or `none`."""
    end_of_thinking_id: int | None
    drops_thinking: bool | None
    """Whether a turn of the assistant that stands in the history loses its thinking."""
    system: bool
    """Whether a system prompt comes through."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VocabularyMatch:
    """Whether both models map the same tokens to the same ids."""

    shared: bool
    sizes: dict[str, int]
    padded: dict[str, int]
    differing: int
    """Ids below the smaller size that mean different tokens."""
    first: list[dict[str, Any]]
    """The first of them (and tokens that only one has), with both literals."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Both models' formats, and what they are to each other."""

    target: ModelFormat
    draft: ModelFormat
    vocabulary: VocabularyMatch
    warnings: list[str]


def read_formats(config: PairConfig, base: Path) -> Formats:
    """Reads both models' tokenizers and configurations.

    Raises:
        ValueError: one of them cannot be read; one line.
    """
    target, target_words = _read("target", config.target, config, base)
    draft, draft_words = _read("draft", config.draft, config, base)
    match = compare({"target": target_words, "draft": draft_words}, {"target": target, "draft": draft})
    return Formats(target, draft, match, _between(target, draft, match))


def _read(role: str, model: ModelConfig, pair: PairConfig, base: Path) -> tuple[ModelFormat, Vocabulary]:
    origin: dict[str, Any] = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        path = located(model.model, base)
        tokenizer = AutoTokenizer.from_pretrained(path, **origin)
        settings = AutoConfig.from_pretrained(path, **origin)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"pair.{role}.model: {model.model}: cannot be read: {' '.join(str(error).split())}") from None
    try:
        generation = GenerationConfig.from_pretrained(path, revision=model.revision)
    except OSError:
        generation = GenerationConfig()
    ends = generation.eos_token_id
    generated = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    words = Vocabulary.from_tokenizer(tokenizer, generated)
    return describe(model.model, tokenizer, words, settings.get_text_config(), generated, generation, pair), words


def describe(
    name: str,
    tokenizer: Any,
    words: Vocabulary,
    settings: Any,
    generated_ends: Sequence[int],
    generation: Any,
    pair: PairConfig,
) -> ModelFormat:
    """The format of one model, from its tokenizer, configuration and generation config."""
    own = [i for i in (tokenizer.eos_token_id,) if i is not None]
    prompt, without = (_render(tokenizer, [_user(QUESTION)], enable_thinking=t) for t in (True, False))
    history = [_user(QUESTION), _assistant(f"{THINK_START}\n{MARK}\n{THINK_END}\n\n5"), _user("And 3 plus 4?")]
    kept = _render(tokenizer, history, enable_thinking=True)
    with_system = _render(tokenizer, [{"role": "system", "content": MARK}, _user(QUESTION)], enable_thinking=True)
    ends = {
        "tokenizer": tokenizer.convert_ids_to_tokens(own),
        "generation_config": tokenizer.convert_ids_to_tokens(list(generated_ends)),
    }
    template = bool(tokenizer.chat_template)
    mentions = THINK_END in str(tokenizer.chat_template or "")
    opened = prompt.rfind(THINK_START) > prompt.rfind(THINK_END)
    token = words.end_of_thinking is not None
    thinks = token or mentions
    found = ModelFormat(
        model=name,
        architecture=(settings.architectures or [type(settings).__name__])[0],
        tokens=len(tokenizer),
        vocab_size=settings.vocab_size,
        context=getattr(settings, "max_position_embeddings", None),
        end_of_text=ends,
        sampling={k: getattr(generation, k, None) for k in ("temperature", "top_p", "top_k", "min_p")},
        chat_template=template,
        prompt=prompt,
        prompt_without=without,
        thinking="none" if not thinks else "template" if opened else "model",
        switch=prompt != without,
        end_of_thinking="token" if token else "text" if thinks else "none",
        end_of_thinking_id=words.end_of_thinking,
        drops_thinking=MARK not in kept if template and thinks else None,
        system=MARK in with_system,
    )
    found.warnings.extend(_warnings(found, tokenizer, pair))
    return found


def _warnings(found: ModelFormat, tokenizer: Any, pair: PairConfig) -> list[str]:
    out = []
    if not found.chat_template:
        out.append(
            "no chat template: the question is put in plain; give a tokenizer with one, or a base model's prompt"
        )
    elif found.prompt == _render(tokenizer, [_user(QUESTION)], add_generation_prompt=False, enable_thinking=True):
        out.append("the template ignores add_generation_prompt: the model would go on with the user's turn")
    if "\\n" in found.prompt:
        out.append(r"the template renders a backslash and an n where a line break is meant")
    if found.prompt.count(QUESTION) != 1:
        out.append(f"the question stands {found.prompt.count(QUESTION)} times in the prompt, not once")
    if pair.system and (bad := sorted({c for c in pair.system if ord(c) < 32 and c not in "\n\t"})):
        out.append(
            f"the system prompt holds control characters ({', '.join(map(repr, bad))}): a backslash was lost in quotes"
        )
    if pair.system and not found.system:
        out.append("the template drops the system prompt that the pair has")
    ends, recommended = found.end_of_text["tokenizer"], found.end_of_text["generation_config"]
    if recommended and not set(ends) <= set(recommended):
        out.append(
            f"end of text differs: {ends} in the tokenizer, {recommended} in the generation config; both end an answer"
        )
    if not pair.thinking and found.thinking == "template" and not found.switch:
        out.append("pair.thinking is false, but the template opens thinking all the same")
    if found.end_of_thinking == "text":
        out.append(
            f"{THINK_END} is written as several tokens: the end of thinking is found in the text, and costs them all"
        )
    if found.vocab_size < found.tokens:
        out.append(f"the tokenizer has {found.tokens} tokens and the model only {found.vocab_size} rows")
    bos = getattr(tokenizer, "bos_token", None)
    if bos and found.prompt.startswith(bos * 2):
        out.append(f"the prompt begins with {bos} twice")
    return out


def compare(words: Mapping[str, Vocabulary], formats: Mapping[str, ModelFormat]) -> VocabularyMatch:
    """Where two vocabularies part."""
    target, draft = words["target"], words["draft"]
    pairs = [(_literal(target, i), _literal(draft, i)) for i in range(max(len(target), len(draft)))]
    unequal = [(i, a, b) for i, (a, b) in enumerate(pairs) if a != b]
    return VocabularyMatch(
        shared=target.shares_ids(draft),
        sizes={role: len(v) for role, v in words.items()},
        padded={role: f.vocab_size for role, f in formats.items()},
        differing=sum(a is not None and b is not None for _, a, b in unequal),
        first=[{"id": i, "target": a, "draft": b} for i, a, b in unequal[:SHOWN]],
    )


def _literal(words: Vocabulary, i: int) -> str | None:
    if i >= len(words):
        return None
    return words.control.get(i) or words.tokens[i].decode("utf-8", errors="backslashreplace")


def _between(target: ModelFormat, draft: ModelFormat, match: VocabularyMatch) -> list[str]:
    """What only shows when both models are seen."""
    out = []
    if not match.shared:
        out.append(
            f"two vocabularies ({match.differing} ids mean different tokens): text is encoded anew at every hand-over"
        )
    if target.thinking != draft.thinking:
        says = {"template": "has it opened by its prompt", "model": "writes its opening itself", "none": "has none"}
        out.append(
            f"thinking begins differently: the target {says[target.thinking]}, the draft {says[draft.thinking]}; after "
            "a hand-over one of them goes on from a text it would not have begun"
        )
    if match.shared and target.end_of_thinking_id != draft.end_of_thinking_id:
        out.append("one vocabulary, but only one model has an end-of-thinking token")
    if target.context and draft.context and draft.context < target.context:
        out.append(f"the draft's context ({draft.context}) is shorter than the target's ({target.context})")
    return out


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _render(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True, **more: Any
) -> str:
    """As the engines render; a template that refuses the conversation renders as nothing."""
    if not tokenizer.chat_template:
        return "\n".join(m["content"] for m in messages)
    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **more
        )
    except Exception:
        # Templates raise jinja errors of their own for roles that they do not know.
        return ""
    return text
