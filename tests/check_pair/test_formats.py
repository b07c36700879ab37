"""What templates, tokenizers and generation configs of published shapes say, and what is wrong with bent ones."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from small_models import PLAIN, QWEN3, R1, save_model

from baton.check_pair.formats import Formats, read_formats
from baton.config import NANO_PAIR, PairConfig


def formats(folder: Path, target: dict[str, Any], draft: dict[str, Any] | None = None, **pair: Any) -> Formats:
    names = {}
    for role, made in (("target", target), ("draft", draft or target)):
        save_model(folder / role, **made)
        names[role] = role
    return read_formats(PairConfig(name="p", **names, **pair), folder)


def test_r1_opens_thinking_in_the_prompt_and_cannot_be_stopped_from_it(tmp_path):
    found = formats(tmp_path, {"template": R1}).target
    assert found.prompt == "<|begin|><|User|>What is 2 plus 3?<|Assistant|><think>\n"
    assert found.thinking == "template"
    assert not found.switch
    assert found.drops_thinking
    assert found.end_of_thinking == "token"
    assert found.end_of_thinking_id == found.tokens - 1
    assert found.system
    assert found.warnings == []


def test_r1_without_thinking_is_warned_about(tmp_path):
    found = formats(tmp_path, {"template": R1}, thinking=False).target
    assert found.warnings == ["pair.thinking is false, but the template opens thinking all the same"]


def test_qwen3_writes_the_opening_itself_and_can_be_switched_off(tmp_path):
    found = formats(tmp_path, {"template": QWEN3, "ends": ["<|im_end|>", "<|end|>"]}).target
    assert found.prompt.endswith("<|im_start|>assistant\n")
    assert found.prompt_without.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert found.thinking == "model"
    assert found.switch
    assert found.drops_thinking
    assert found.end_of_text == {"tokenizer": ["<|end|>"], "generation_config": ["<|im_end|>", "<|end|>"]}
    assert found.warnings == []


def published(name: str) -> str:
    """A published model's template, as the training extra's library ships it."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("the templates come with the extra `train`")
    return (Path(found.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


def test_the_published_templates_of_qwen3_and_r1_are_read_like_the_short_ones(tmp_path):
    qwen = {"template": published("qwen3"), "ends": ["<|im_end|>", "<|end|>"]}
    target = formats(tmp_path / "qwen", qwen, {**qwen, "padded": 384}).target
    assert (target.thinking, target.switch, target.drops_thinking, target.warnings) == ("model", True, True, [])
    assert target.prompt_without.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    r1 = formats(tmp_path / "r1", {"template": published("deepseek_r1_distill")}, thinking=False).target
    assert (r1.thinking, r1.switch, r1.drops_thinking, r1.system) == ("template", False, True, True)
    assert r1.prompt.endswith("<think>\n")
    assert r1.warnings == ["pair.thinking is false, but the template opens thinking all the same"]


def test_a_model_that_does_not_think_is_told_as_such(tmp_path):
    found = formats(tmp_path, {"template": PLAIN, "thinking": []}).target
    assert (found.thinking, found.end_of_thinking, found.drops_thinking) == ("none", "none", None)


def test_an_end_of_thinking_of_several_tokens_is_text(tmp_path):
    found = formats(tmp_path, {"template": R1, "thinking": []}).target
    assert found.end_of_thinking == "text"
    assert found.thinking == "template"
    assert any("written as several tokens" in w for w in found.warnings)


@pytest.mark.parametrize(
    ("made", "pair", "warning"),
    [
        ({"template": R1.replace("{{ '\\n' }}{% endif %}", "\\n{% endif %}")}, {}, "a backslash and an n"),
        ({"template": R1.replace("{% if add_generation_prompt %}", "{% if false %}")}, {}, "add_generation_prompt"),
        (
            {"template": R1.replace("{{ bos_token }}", "{{ bos_token }}{{ bos_token }}")},
            {},
            "begins with <|begin|> twice",
        ),
        ({"template": R1.replace("<|User|>{{ m['content'] }}", "<|User|>")}, {}, "stands 0 times"),
        ({"template": None}, {}, "no chat template"),
        ({"template": R1}, {"system": "Put it in \boxed{}."}, r"control characters ('\x08')"),
        (
            {"template": R1.replace("'system' %}{{ m['content'] }}", "'system' %}")},
            {"system": "Be brief."},
            "drops the system prompt",
        ),
        ({"template": R1, "ends": ["<|im_end|>"]}, {}, "end of text differs: ['<|end|>'] in the tokenizer"),
        ({"template": R1, "padded": 200}, {}, "tokens and the model only 200 rows"),
    ],
)
def test_bent_prompts_and_ends_are_found(tmp_path, made, pair, warning):
    assert [w for w in formats(tmp_path, made, **pair).target.warnings if warning in w]


def test_one_vocabulary_with_other_padding_is_shared(tmp_path):
    match = formats(tmp_path, {"template": R1}, {"template": R1, "padded": 384}).vocabulary
    assert match.shared
    assert match.padded == {"target": 320, "draft": 384}
    assert (match.differing, match.first) == (0, [])


def test_two_vocabularies_are_told_by_the_first_tokens_that_differ(tmp_path):
    found = formats(tmp_path, {"template": R1, "extra": ["one"]}, {"template": R1, "extra": ["two", "three"]})
    match = found.vocabulary
    assert not match.shared
    size = match.sizes["target"]
    assert match.sizes["draft"] == size + 1
    assert match.differing == 1
    assert match.first == [
        {"id": size - 1, "target": "one", "draft": "two"},
        {"id": size, "target": None, "draft": "three"},
    ]
    assert any("two vocabularies (1 ids mean different tokens)" in w for w in found.warnings)


def test_models_that_begin_thinking_differently_are_warned_about(tmp_path):
    found = formats(tmp_path, {"template": R1}, {"template": QWEN3})
    (warning,) = found.warnings
    assert "the target has it opened by its prompt, the draft writes its opening itself" in warning


def test_a_shorter_context_of_the_draft_is_warned_about(tmp_path):
    found = formats(tmp_path, {"template": R1}, {"template": R1, "context": 128})
    assert found.warnings == ["the draft's context (128) is shorter than the target's (512)"]


def test_a_model_that_is_not_there_is_named(tmp_path):
    save_model(tmp_path / "target", R1)
    with pytest.raises(ValueError, match=r"pair\.draft\.model: nowhere/at/all: cannot be read"):
        read_formats(PairConfig(name="p", target="target", draft="nowhere/at/all"), tmp_path)


def test_the_shipped_pair_has_nothing_to_be_warned_about():
    found = read_formats(NANO_PAIR, Path.cwd())
    assert found.vocabulary.shared
    assert found.target.thinking == found.draft.thinking == "template"
    assert found.warnings == found.target.warnings == found.draft.warnings == []
