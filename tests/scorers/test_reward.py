"""An outcome reward model reads the whole chat, batched or not, and grades open prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_prms import QWEN_CHAT, SIZE, make_tokenizer
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from baton.bench.grading import Grade, Grader
from baton.bench.tasks import Question
from baton.config import RewardConfig
from baton.scorers.base import ScoreRequest
from baton.scorers.reward import Reward


def save(folder: Path, labels: int = 1, chat: str | None = QWEN_CHAT) -> RewardConfig:
    torch.manual_seed(0)
    tokenizer = make_tokenizer(("<|im_start|>", "<|im_end|>"), chat)
    tokenizer.save_pretrained(folder)
    config = Qwen3Config(**SIZE, head_dim=8, num_labels=labels)
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    return RewardConfig(kind="reward", model=str(folder), device="cpu")


def request(answer: str, before: tuple[str, ...] = ()) -> ScoreRequest:
    return ScoreRequest("Name a fruit.", before, answer, "answer", (), 0)


def plainly(folder: Path, answer: str) -> float:
    """One forward of the whole chat, by itself."""
    tokenizer = make_tokenizer(("<|im_start|>", "<|im_end|>"), QWEN_CHAT)
    chat = [{"role": "user", "content": "Name a fruit."}, {"role": "assistant", "content": answer}]
    ids = tokenizer.encode(tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False)
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return float(model.score(model.model(torch.tensor([ids])).last_hidden_state)[0, -1, 0])


async def test_rewards_are_those_of_the_whole_chat_whatever_is_beside_it_in_the_batch(tmp_path):
    scorer = Reward.load("reward", save(tmp_path), {}, tmp_path)
    answers = ["An apple.", "A pear, which is sweet.", "Plum"]
    scores = await scorer.score([request(a) for a in answers])
    assert [s.value for s in scores] == pytest.approx([plainly(tmp_path, a) for a in answers], abs=1e-4)
    assert len({round(s.value, 3) for s in scores}) == 3
    [stepwise] = await scorer.score([request("which is sweet.", ("A pear,\n\n",))])
    assert stepwise.value == pytest.approx(plainly(tmp_path, "A pear,\n\nwhich is sweet."), abs=1e-4)
    await scorer.close()


async def test_an_open_answer_wins_if_its_reward_is_higher(tmp_path):
    scorer = Reward.load("reward", save(tmp_path), {}, tmp_path)
    worse, better = sorted(["An apple.", "A pear, which is sweet."], key=lambda a: plainly(tmp_path, a))
    grader = Grader(scorers={"reward": scorer})
    asked = {a: Question("q", "Name a fruit.", a, grader="reward", key={"scorer": "reward"}) for a in (worse, better)}
    assert (await grader.grade(asked[worse], better)).grade is Grade.CORRECT
    assert (await grader.grade(asked[better], worse)).grade is Grade.WRONG
    assert (await grader.grade(asked[better], better)).score == 0.5
    await scorer.close()


@pytest.mark.parametrize(
    ("changes", "said"), [({"labels": 2}, "it has 2 labels"), ({"chat": None}, "no chat template")]
)
def test_a_checkpoint_that_is_no_reward_model_is_refused(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        Reward.load("reward", save(tmp_path, **changes), {}, tmp_path)
