"""A model's tokenizer where some other process runs the model: its vocabulary, its chat template, its size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from jinja2 import TemplateError

from baton.engines.base import EngineError, LoadError
from baton.flops import Architecture, of_checkpoint
from baton.vocabulary import Vocabulary


def load_tokenizer(path: str, revision: str | None = None, trust_remote_code: bool = False) -> tuple[Any, Vocabulary]:
    """The fast tokenizer of a model (folder or hub id), and its vocabulary with the ends its generation config names.

    Raises:
        LoadError: there is none, or it cannot be read.
    """
    origin: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **origin)
    except Exception as error:
        # The readers of tokenizers raise what they like about a damaged file.
        raise LoadError(f"{path}: its tokenizer cannot be loaded: {_line(error)}; {remedy(path)}") from error
    try:
        ends = transformers.GenerationConfig.from_pretrained(path, revision=revision).eos_token_id
    except (OSError, ValueError):
        ends = None
    return tokenizer, vocabulary_of(tokenizer, path, ends)


def remedy(name: str) -> str:
    """What to do about a model (folder or hub id) that cannot be loaded."""
    if Path(name).is_dir():
        return "check its files"
    return f"check the name, or give a folder: `hf download {name} --local-dir FOLDER` where there is a network"


def vocabulary_of(tokenizer: Any, name: str, ends: int | Sequence[int] | None) -> Vocabulary:
    """The vocabulary of a fast tokenizer; `ends` are the ids of the model's generation config that end a text.

    Raises:
        LoadError: the tokenizer is no fast one.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise LoadError(f"{name}: it has no fast tokenizer; add a tokenizer.json")
    return Vocabulary.from_tokenizer(
        tokenizer, end_of_text=[] if ends is None else [ends] if isinstance(ends, int) else ends
    )


def render(
    tokenizer: Any, vocabulary: Vocabulary, messages: Sequence[dict[str, str]], thinking: bool = True
) -> list[int]:
    """Prompt ids of a conversation, ready for the assistant's first token, by the tokenizer's chat template.

    Without one: the messages' contents, joined by line breaks.

    Raises:
        EngineError: the template refuses the conversation.
    """
    if not tokenizer.chat_template:
        ids: list[int] = tokenizer.encode("\n".join(message["content"] for message in messages))
        return ids
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise EngineError(f"chat template: it refuses a conversation of {roles} ({error}); leave a role out") from error
    # The template writes its own special tokens.
    return vocabulary.encode(text)


def architecture(path: str, revision: str | None = None, trust_remote_code: bool = False) -> Architecture | None:
    """What a forward of a model costs by its configuration; None where that does not say."""
    try:
        return of_checkpoint(path, revision, trust_remote_code)
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
