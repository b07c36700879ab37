"""An outcome reward model: one number for a whole answer to a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from baton.engines.base import Engine, LoadError
from baton.scorers.base import Score, Scorer, ScoreRequest
from baton.scorers.batch import Batcher
from baton.scorers.checkpoint import Checkpoint
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import RewardConfig

Exchange = tuple[str, str]
"""A question and an answer."""


class RewardModel:
    """A sequence classifier with one label, on the chat of a question and an answer, by the model's own template.

    That is how Skywork-Reward and most models of its kind are published. A conversation longer than the model can read
    loses its beginning.
    """

    def __init__(self, checkpoint: Checkpoint):
        self._model = checkpoint.model(transformers.AutoModelForSequenceClassification)
        self._tokenizer = checkpoint.tokenizer(transformers.AutoTokenizer)
        if self._model.config.num_labels != 1:
            raise LoadError(
                f"{checkpoint.folder}: it has {self._model.config.num_labels} labels; a reward model has one"
            )
        if not self._tokenizer.chat_template:
            raise LoadError(f"{checkpoint.folder}: its tokenizer has no chat template; give one that has")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        # The classifier reads the last token that is no padding.
        self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._tokenizer.padding_side, self._tokenizer.truncation_side = "right", "left"
        self._longest = getattr(self._model.config, "max_position_embeddings", None)

    @torch.inference_mode()
    def __call__(self, exchanges: Sequence[Exchange]) -> list[tuple[float, int]]:
        """A reward, of any range, and the tokens read, for each exchange."""
        chats = [
            self._tokenizer.apply_chat_template(
                [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], tokenize=False
            )
            for question, answer in exchanges
        ]
        inputs = self._tokenizer(
            chats, padding=True, truncation=self._longest is not None, max_length=self._longest,
            add_special_tokens=False, return_tensors="pt",
        ).to(self._model.device)  # fmt: skip
        rewards = self._model(**inputs).logits.float()[:, 0].cpu()
        return list(zip(rewards.tolist(), inputs.attention_mask.sum(1).tolist(), strict=True))


class Reward(Scorer):
    """Scores the answer up to and with the step that is asked about, as a whole.

    For grading open prompts (`grader: reward`), or for routers that gate on it; its scores have no fixed range.

    Args:
        name: what errors call it.
        rate: rewards of exchanges; runs in a thread of its own, on what waits together.
        most: exchanges in one batch.
    """

    def __init__(self, name: str, rate: Any, most: int):
        self.batcher: Batcher[Exchange, tuple[float, int]] = Batcher(name, rate, most)

    @classmethod
    def load(cls, name: str, config: RewardConfig, engines: Mapping[Role, Engine], base: Path) -> Reward:
        """From a pair's configuration.

        Raises:
            ValueError: the model cannot be loaded, or is no reward model.
        """
        from baton.config import located

        checkpoint = Checkpoint.find(
            located(config.model, base), device=config.device, dtype=config.dtype,
            trust_remote_code=config.trust_remote_code, revision=config.revision,
        )  # fmt: skip
        return cls(name, RewardModel(checkpoint), config.max_batch)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        rated = await self.batcher.run([(r.question, "\n\n".join(r.path).strip()) for r in requests])
        return [Score(reward, tokens=tokens) for reward, tokens in rated]

    async def close(self) -> None:
        await self.batcher.close()
