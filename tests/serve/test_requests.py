"""What the fields of a request may be, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from baton.serve.errors import RefusedError
from baton.serve.schema import IGNORED, REFUSED, ChatRequest, CompletionRequest, parse

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, Any] = {"prompt": "x"}


@pytest.mark.parametrize("field", sorted([*REFUSED, *IGNORED, "model", "n", "stop", "stream", "of_another_server"]))
def test_a_field_that_is_null_asks_for_nothing(field: str) -> None:
    assert parse(CompletionRequest, {**TEXT, field: None}) == parse(CompletionRequest, TEXT)
    assert parse(ChatRequest, {**CHAT, field: None}) == parse(ChatRequest, CHAT)


@pytest.mark.parametrize(("field", "about"), [(name, about) for name, about in REFUSED.items() if about[0]])
def test_a_neutral_value_asks_for_nothing_and_another_is_refused(field: str, about: tuple[Any, str]) -> None:
    for neutral in about[0]:
        parse(ChatRequest, {**CHAT, field: neutral})
    with pytest.raises(RefusedError) as refused:
        parse(ChatRequest, {**CHAT, field: "something else"})
    assert (refused.value.status, refused.value.param) == (400, field)
    assert about[1] in refused.value.message


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"stop": [None]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 3}, "stop"),
        ({"min_p": 1.5}, "min_p"),
        ({"stream_options": {"include_usage": "perhaps"}}, "stream_options.include_usage"),
    ],
)
def test_a_wrong_value_is_told_by_the_name_of_its_field(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusedError) as refused:
        parse(CompletionRequest, {**TEXT, **asked})
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize("prompt", ["x", ["x", "y"], [1, 2], [[1], [2, 3]]])
def test_a_prompt_is_a_text_or_ids_or_several(prompt: Any) -> None:
    assert parse(CompletionRequest, {"prompt": prompt}).prompt == prompt
