"""Trains an Eagle-3 head for a target: one layer that proposes tokens, which the target's next forward verifies.

The head reads three hidden states of the target at each token of the target's own answers, and learns to guess as the
target does, also from its own states one and two tokens on. Layer and loss are those of `speculators`; the checkpoint
has the form of published heads, for vLLM's `eagle3`. What it shares with the target (embedding, output matrix) is not
in it. Paper: arXiv 2503.01840.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import CollateFn
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, set_seed

from baton.config import located
from baton.records import read_traces, write_json
from baton.trace import Role, Trace
from baton.training.config import Training
from baton.training.examples import Example, split
from baton.training.trainer import last_checkpoint

OWN = ("fc.", "layers.", "norm.")
"""Of a head's weights, those that are not the target's."""


@dataclass
class Eagle3Training:
    """What the head looks like, and which answers it learns from."""

    target: str = field(default="nano:target", metadata={"help": "The model that the head proposes tokens to."})
    data: str = field(default="", metadata={"help": "traces.jsonl of a run in which the target answered alone."})
    states: list[int] = field(
        default_factory=lambda: [2, 6, 9], metadata={"help": "Layers of the target whose inputs the head reads: three."}
    )
    intermediate: int = field(default=512, metadata={"help": "Width of the head's feed-forward layer."})
    tokens: int = field(default=3, metadata={"help": "Tokens in a row that it learns to propose."})
    row: int = field(default=512, metadata={"help": "Tokens computed at once: answers are packed, and cut at its end."})
    held_out: float = field(default=0.1, metadata={"help": "Share of the questions that acceptance is measured on."})

    def __post_init__(self) -> None:
        if not Path(self.data).is_file():
            raise ValueError(f"data: {self.data!r} is no file; give the traces.jsonl of a run of the router target")
        if len(self.states) != 3:
            raise ValueError(f"states: {self.states} are not three layers; Eagle-3 reads three")
        if self.tokens < 1:
            raise ValueError(f"tokens: {self.tokens} is too few; use 1 or more")


@dataclass(frozen=True, slots=True)
class Answer(Example):
    """An answer of the target; `ids` with its prompt, of which there are `prompt`."""

    prompt: int


def read_answers(file: Path) -> list[Answer]:
    """The answers of a run that the target wrote alone.

    Raises:
        ValueError: there is none.
    """
    answers = [_answer(trace) for trace in read_traces(file) if {s.role for s in trace.path()} == {Role.TARGET}]
    if not answers:
        raise ValueError(f"data: {file} holds no answer that the target wrote alone; run the router target")
    return answers


def _answer(trace: Trace) -> Answer:
    prompt = trace.prompts[Role.TARGET]
    return Answer(trace.question, (*prompt, *(i for s in trace.path() for i in s.ids)), (), len(prompt))


class States(Dataset[dict[str, Tensor]]):
    """Answers with the target's states; each is computed once, and kept in half precision.

    An item has `input_ids`, `position_ids`, `loss_mask` `[tokens]`, `hidden_states` `[tokens, 3 x width]` (inputs of
    the chosen layers) and `verifier_last_hidden_states` `[tokens, width]`, before the final norm.
    """

    def __init__(self, target: Any, layers: Sequence[int], answers: Sequence[Answer]):
        self._target, self._layers, self._answers = target, layers, answers
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def __getitem__(self, n: int) -> dict[str, Tensor]:
        answer = self._answers[n]
        if n not in self._known:
            self._known[n] = self._see(answer)
        states, last = self._known[n]
        tokens = len(answer.ids)
        return {
            "input_ids": torch.tensor(answer.ids),
            "position_ids": torch.arange(tokens),
            "loss_mask": torch.arange(tokens) >= answer.prompt,
            "hidden_states": states.float(),
            "verifier_last_hidden_states": last.float(),
            "lengths": torch.tensor([tokens]),
        }

    @torch.inference_mode()
    def _see(self, answer: Answer) -> tuple[Tensor, Tensor]:
        before_norm: list[Tensor] = []
        body = self._target.model
        hook = body.norm.register_forward_pre_hook(lambda _, given: before_norm.append(given[0]))
        try:
            ids = torch.tensor([answer.ids], device=self._target.device)
            states = body(ids, use_cache=False, output_hidden_states=True).hidden_states
        finally:
            hook.remove()
        read = torch.cat([states[layer][0] for layer in self._layers], -1)
        return read.half().cpu(), before_norm[0][0].half().cpu()


def new_head(target: Any, asked: Eagle3Training) -> Eagle3DraftModel:
    """A head with random weights, and beside them those of the target that it needs."""
    given = target.config
    shape = LlamaConfig(
        hidden_size=given.hidden_size, intermediate_size=asked.intermediate, num_hidden_layers=1,
        num_attention_heads=given.num_attention_heads, num_key_value_heads=given.num_key_value_heads,
        head_dim=given.head_dim, vocab_size=given.vocab_size, max_position_embeddings=given.max_position_embeddings,
        rms_norm_eps=given.rms_norm_eps, rope_parameters=given.rope_parameters, tie_word_embeddings=False,
        attn_implementation="eager",
    )  # fmt: skip
    head = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=shape,
            draft_vocab_size=given.vocab_size,
            eagle_aux_hidden_state_layer_ids=asked.states,
        )
    )  # fmt: skip
    embedding, output = target.get_input_embeddings(), target.get_output_embeddings()
    for mine, theirs in (
        (head.embed_tokens, embedding),
        (head.lm_head, output),
        (head.verifier_lm_head, output),
        (head.verifier_norm, target.model.norm),
    ):
        mine.weight.data.copy_(theirs.weight.data)
        mine.requires_grad_(False)
    return head


class HeadTrainer(Trainer):
    """Minimises what `speculators` finds the head's loss to be, over `tokens` tokens in a row."""

    def __init__(self, tokens: int, **keywords: Any):
        self.tokens = tokens
        super().__init__(**keywords)
        # The loss is a mean over the tokens of a row; nothing is scaled by their number.
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Tensor:
        loss: Tensor = _forward(model, inputs, self.tokens)[1]
        return loss


def _forward(head: nn.Module, inputs: dict[str, Any], tokens: int) -> Any:
    """Tokens proposed, the loss, and counts of right tokens."""
    rows = {name: value for name, value in inputs.items() if torch.is_tensor(value)}
    # The fused form needs a GPU.
    loss = resolve_loss_config("kl_div", "fused" if torch.cuda.is_available() else "eager")
    return head(**rows, ttt_steps=tokens, loss_config=loss)


@torch.inference_mode()
def acceptance(head: nn.Module, batches: Any, tokens: int) -> list[float]:
    """The shares of places at which the first 1, 2, ... `tokens` tokens proposed are all the target's likeliest."""
    right, tried = [0.0] * tokens, [0.0] * tokens
    head.eval()
    for inputs in batches:
        found = _forward(head, inputs, tokens)[2]
        for n in range(tokens):
            right[n] += float(found[f"full_acc_{n}_sum"])
            tried[n] += float(found[f"full_acc_{n}_total"])
    return [round(r / t, 4) for r, t in zip(right, tried, strict=True)]


def export(head: Eagle3DraftModel, asked: Eagle3Training, folder: Path) -> Path:
    """Writes the head in half precision (bfloat16), without what is the target's own."""
    shape = head.config.transformer_layer_config
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "draft_vocab_size": shape.vocab_size, "rope_theta": shape.rope_parameters["rope_theta"],
        "tie_word_embeddings": False, "dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": asked.states},
    }  # fmt: skip
    same = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "max_position_embeddings", "rms_norm_eps",
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config | {name: getattr(shape, name) for name in same})
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor.to(torch.bfloat16).contiguous()
        for name, tensor in head.state_dict().items()
        if name.startswith(OWN)
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def train(asked: Eagle3Training, training: Training) -> dict[str, Any]:
    """Trains, measures and exports; goes on from the last checkpoint in `output_dir`.

    Returns:
        What `output_dir/training.json` holds.

    Raises:
        ValueError: the data holds no answers of the target, or too few.
    """
    began = time.perf_counter()
    set_seed(training.seed)
    out = Path(training.output_dir or "runs/eagle3")
    parts = split(read_answers(Path(asked.data)), asked.held_out)
    target = AutoModelForCausalLM.from_pretrained(located(asked.target, Path()), dtype=torch.float32).eval()
    target.to(training.device)
    head = new_head(target, asked)
    collate = CollateFn(asked.row, target.config.hidden_size, 3, torch.float32, shift_batch)
    trainer = HeadTrainer(
        asked.tokens, model=head, args=training, data_collator=collate,
        train_dataset=States(target, asked.states, parts.learned),
        eval_dataset=States(target, asked.states, parts.held_out),
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=last_checkpoint(out))
    accepted = acceptance(head, trainer.get_eval_dataloader(), asked.tokens)
    report = {
        "model": str(export(head, asked, out / "model")),
        "learned": len(parts.learned), "held_out": len(parts.held_out),
        "parameters": sum(p.numel() for p in head.parameters() if p.requires_grad),
        "accepted_in_a_row": accepted, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip
    (out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    return report
