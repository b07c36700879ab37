"""Data, models and training loop of the nano pair."""

from __future__ import annotations

import json
import math
import random
import re
import time
from bisect import bisect_left, insort
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from tokenizers import Tokenizer
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from baton.config import read_yaml
from baton.nano.families import TRAINED
from baton.nano.language import judge_same, judge_score, work
from baton.nano.problems import LEVELS, Problem, draw
from baton.nano.tokenizer import END, END_OF_TEXT, THINK, judge_text, problem_text
from baton.records import Lines

ID_BITS, VERDICT_BIT, START_BIT, LEARNED_BIT = 0x1FFF, 0x2000, 0x4000, 0x8000
LEVEL_WEIGHTS = (12, 16, 20, 24, 28)


@dataclass(frozen=True)
class Recipe:
    """One training run of one model; the fields of `recipes/nano/train/*.yaml`."""

    out: str
    data: str
    tokenizer: str = "src/baton/nano/target"
    layers: int = 12
    width: int = 256
    intermediate: int = 768
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    vocab_size: int = 1024
    documents: int = 1_000_000
    judge_share: float = 0.12
    verdict_weight: float = 8.0
    row: int = 512
    workers: int = 16
    rows_per_step: int = 128
    steps: int = 9_000
    seconds: float = 240.0
    lr: float = 2e-3
    warmup: int = 300
    weight_decay: float = 0.1
    compile: bool = True
    log_every: int = 50
    evaluate_every: int = 500
    seed: int = 0

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Reads a recipe.

        Raises:
            ValueError: the file is missing or no YAML, or a field is unknown, missing or of another type.
        """
        given = read_yaml(Path(path))
        known = {f.name: f.type for f in fields(cls)}
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"{path}: {unknown[0]} is no field of a nano recipe; use one of {', '.join(known)}")
        if missing := sorted({"out", "data"} - set(given)):
            raise ValueError(f"{path}: {missing[0]} is missing; give a path")
        types = {"str": str, "int": int, "float": (int, float), "bool": bool}
        for name, value in given.items():
            if not isinstance(value, types[str(known[name])]):  # type: ignore[arg-type]
                raise ValueError(f"{path}: {name}: {value!r} is not of type {known[name]}")
        return cls(**given)


def sample_document(rng: random.Random, split: str, judge_share: float) -> tuple[str, list[tuple[int, int, int]]]:
    """A training document and the character spans that are learned, each with its flag bits.

    Learned is what the assistant says, without the digits of slips. Three judging conversations in five have several
    turns.
    """
    level, family = rng.choices(LEVELS, LEVEL_WEIGHTS)[0], rng.choice(TRAINED)
    question, operations = draw(rng, split, family, level)
    problem = Problem("", family, level, split, question, operations[-1].result, operations)
    if rng.random() < judge_share:
        turns = rng.choice((1, 1, 4, 4, 4))
        judged = judge_score(problem, rng, turns) if rng.random() < 0.6 else judge_same(problem, rng, turns)
        text = judge_text(judged)
        openings = [match.end() for match in re.finditer("assistant\n", text)]
        verdicts = [(at, text.index(END, at), LEARNED_BIT | VERDICT_BIT) for at in openings]
        return text, [*verdicts, *((end, end + len(END), LEARNED_BIT) for _, end, _ in verdicts)]
    worked = work(problem, rng)
    text = problem_text(question, worked)
    at = text.index(f"{THINK}\n") + len(THINK) + 1
    spans = []
    for piece in worked.pieces:
        if piece.learned:
            spans.append((at, at + len(piece.text), LEARNED_BIT))
        at += len(piece.text)
    return text, [*spans, (at, at + len(END), LEARNED_BIT)]


def _encode(tokenizer: Tokenizer, documents: list[tuple[str, list[tuple[int, int, int]]]]) -> Iterator[np.ndarray]:
    for encoding, (text, spans) in zip(tokenizer.encode_batch([t for t, _ in documents]), documents, strict=True):
        flags = np.zeros(len(text) + 1, dtype=np.uint16)
        for begin, end, bits in spans:
            flags[begin:end] = bits
        ids = np.array(encoding.ids, dtype=np.uint16)
        ids |= flags[np.array([begin for begin, _ in encoding.offsets])]
        ids[0] |= START_BIT
        yield ids


def _rows(tokenizer_file: str, split: str, documents: int, row: int, judge_share: float, seed: str) -> np.ndarray:
    """Documents packed into rows, best fit over a pool of open rows; the rest of a row is padding and not learned."""
    rng = random.Random(seed)
    tokenizer = Tokenizer.from_file(tokenizer_file)
    pad = np.uint16(tokenizer.encode(END_OF_TEXT).ids[0] | START_BIT)
    packed: list[np.ndarray] = []
    rooms: list[tuple[int, int]] = []
    contents: dict[int, list[np.ndarray]] = {}
    opened = 0
    for at in range(0, documents, 1_000):
        chunk = [sample_document(rng, split, judge_share) for _ in range(min(1_000, documents - at))]
        for ids in sorted(_encode(tokenizer, chunk), key=len, reverse=True):
            if len(ids) > row:
                continue
            index = bisect_left(rooms, (len(ids), -1))
            if index == len(rooms):
                room, name = row, opened
                opened += 1
                contents[name] = []
            else:
                room, name = rooms.pop(index)
            contents[name].append(ids)
            if room - len(ids) < 48:
                packed.append(_filled(contents.pop(name), row, pad))
            else:
                insort(rooms, (room - len(ids), name))
    packed += [_filled(parts, row, pad) for parts in contents.values()]
    rng.shuffle(packed)
    return np.stack(packed)


def _filled(parts: list[np.ndarray], row: int, pad: np.uint16) -> np.ndarray:
    filled = np.full(row, pad & ID_BITS, dtype=np.uint16)
    joined = np.concatenate(parts)
    filled[: len(joined)] = joined
    if len(joined) < row:
        filled[len(joined)] = pad
    return filled


def write_rows(recipe: Recipe) -> dict[str, float]:
    """Writes `<data>/train.npy` and `<data>/dev.npy` with `workers` processes.

    Both are uint16, [rows, row]: a token id and three flag bits (start of a document, learned, verdict).
    """
    began = time.perf_counter()
    folder = Path(recipe.data)
    folder.mkdir(parents=True, exist_ok=True)
    file = str(Path(recipe.tokenizer) / "tokenizer.json")
    share = math.ceil(recipe.documents / recipe.workers)
    arguments = [
        (file, "train", share, recipe.row, recipe.judge_share, f"{recipe.seed}/{i}") for i in range(recipe.workers)
    ]
    with ProcessPoolExecutor(recipe.workers) as pool:
        held_out = pool.submit(
            _rows, file, "dev", max(64, min(2_000, recipe.documents)), recipe.row, recipe.judge_share, "dev"
        )
        parts = list(pool.map(_rows, *zip(*arguments, strict=True)))
        np.save(folder / "dev.npy", held_out.result())
    rows = np.concatenate(parts)
    np.save(folder / "train.npy", rows)
    return {
        "rows": len(rows),
        "tokens": rows.size,
        "learned": float((rows & LEARNED_BIT > 0).mean()),
        "seconds": round(time.perf_counter() - began, 1),
    }


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """A fresh model with the recipe's shape; weights are drawn from torch's global generator."""
    config = Qwen3Config(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.width,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=True, temperature=0.6
    )
    return model


def unpack(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, positions, attention mask, labels (-100 where not learned) and which labels are verdicts, of packed rows.

    `rows` is int64 [batch, row]; the mask is boolean, [batch, 1, row, row], and keeps documents apart; labels are
    already shifted.
    """
    ids = rows & ID_BITS
    starts = (rows & START_BIT) > 0
    index = torch.arange(rows.shape[1], device=rows.device)
    document = starts.cumsum(1)
    positions = index - torch.where(starts, index, 0).cummax(1).values
    visible = (document[:, :, None] == document[:, None, :]) & (index[:, None] >= index[None, :])
    following = torch.cat([rows[:, 1:], torch.zeros_like(rows[:, :1])], dim=1)
    labels = torch.where((following & LEARNED_BIT) > 0, following & ID_BITS, -100)
    return ids, positions, visible[:, None], labels, (following & VERDICT_BIT) > 0


def loss_of(
    model: torch.nn.Module, rows: torch.Tensor, dtype: torch.dtype, verdict_weight: float = 1.0
) -> torch.Tensor:
    """Cross-entropy in nats for each learned token of packed rows; a verdict counts `verdict_weight` times."""
    ids, positions, visible, labels, verdicts = unpack(rows.long() & 0xFFFF)
    mask = torch.zeros(visible.shape, device=rows.device, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)
    logits = model(
        input_ids=ids, position_ids=positions, attention_mask={"full_attention": mask}, use_cache=False
    ).logits
    losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
    weights = torch.where(verdicts, verdict_weight, 1.0).flatten()
    return (losses * weights).sum() / (labels >= 0).sum()


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, rows: torch.Tensor, batch: int, dtype: torch.dtype) -> float:
    """Unweighted mean loss over packed rows, in nats a learned token."""
    model.eval()
    losses = [loss_of(model, part, dtype).item() for part in rows.split(batch)]
    model.train()
    return sum(losses) / len(losses)


class _Training:
    """A model, the packed rows that it learns, and how far it is."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
        self.dtype = torch.bfloat16 if self.accelerator.mixed_precision == "bf16" else torch.float32
        torch.manual_seed(recipe.seed)
        self.device = self.accelerator.device
        self.rows, self.held_out = self._rows("train"), self._rows("dev")[:256]
        self.tokenizer = AutoTokenizer.from_pretrained(recipe.tokenizer)
        model: Any = build_model(recipe, self.tokenizer)
        if recipe.compile:
            for layer in model.model.layers:
                layer.compile()
        self.model, self.optimizer = self.accelerator.prepare(model, self._optimizer(model))
        self.share = recipe.rows_per_step // self.accelerator.num_processes
        """Rows of a step that this process computes."""
        self.steps = self.tokens = 0
        self.began: float | None = None
        """When the first step, which compiles, was done: the budget of seconds is for training."""
        self._order = torch.Generator().manual_seed(recipe.seed)
        self._shuffled = torch.empty(0, dtype=torch.long)
        self._logged, self._losses = time.perf_counter(), torch.zeros((), device=self.device)

    def _rows(self, split: str) -> torch.Tensor:
        file = Path(self.recipe.data) / f"{split}.npy"
        if not file.is_file():
            raise FileNotFoundError(f"data: {file} does not exist; write it with scripts/train_nano.py --stage data")
        return torch.from_numpy(np.load(file).view(np.int16)).to(self.device)

    def _optimizer(self, model: torch.nn.Module) -> torch.optim.AdamW:
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        return torch.optim.AdamW(
            [{"params": decayed, "weight_decay": self.recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=self.recipe.lr,
            betas=(0.9, 0.98),
            fused=self.device.type == "cuda",
        )

    @property
    def seconds(self) -> float:
        return 0.0 if self.began is None else time.perf_counter() - self.began

    def progress(self) -> float:
        """How much of the steps or of the seconds is spent, whichever is more; over 1 the training is done."""
        spent = max(self.steps / self.recipe.steps, self.seconds / self.recipe.seconds)
        if self.accelerator.num_processes > 1:
            spent = self.accelerator.reduce(torch.tensor(spent, device=self.device), "mean").item()
        return spent

    def _mine(self) -> torch.Tensor:
        """Indices of the rows that this process learns next."""
        count, process = self.recipe.rows_per_step, self.accelerator.process_index
        if len(self._shuffled) < count:
            self._shuffled = torch.randperm(len(self.rows), generator=self._order)
            if len(self._shuffled) < count:
                self._shuffled = self._shuffled.repeat(math.ceil(count / len(self.rows)))
        chosen, self._shuffled = self._shuffled[:count], self._shuffled[count:]
        return chosen[process * self.share : (process + 1) * self.share]

    def step(self, progress: float) -> float:
        """Learns from the next rows; returns the learning rate, which warms up and then falls as a cosine."""
        recipe = self.recipe
        warm = min(1.0, (self.steps + 1) / recipe.warmup)
        rate = recipe.lr * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(self.model, self.rows[self._mine().to(self.device)], self.dtype, recipe.verdict_weight)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._losses += loss.detach()
        self.steps += 1
        self.tokens += recipe.rows_per_step * recipe.row
        if self.began is None:
            # Waits for the device.
            self._losses.item()
            self.began = time.perf_counter()
        return rate

    def held_out_loss(self) -> float:
        return round(held_out_loss(self.model, self.held_out, self.share, self.dtype), 4)

    def record(self, rate: float) -> dict[str, Any]:
        """A line of the log, over the steps since the last one."""
        recipe = self.recipe
        mean = self.accelerator.reduce(self._losses, "mean").item() / recipe.log_every
        now = time.perf_counter()
        found = {"step": self.steps, "tokens": self.tokens, "loss": round(mean, 4), "lr": round(rate, 6)}
        found["tokens_per_second"] = round(recipe.log_every * recipe.rows_per_step * recipe.row / (now - self._logged))
        if self.steps % recipe.evaluate_every == 0:
            found["held_out_loss"] = self.held_out_loss()
        self._logged = time.perf_counter()
        self._losses.zero_()
        return found


def train(recipe: Recipe) -> dict[str, Any]:
    """Trains one model and saves it, rounded to bfloat16, with its tokenizer and a JSONL log into `recipe.out`.

    The cosine schedule ends at `steps` or at `seconds` of training, whichever comes first. Raises FileNotFoundError if
    the packed rows are missing.
    """
    run, out = _Training(recipe), Path(recipe.out)
    out.mkdir(parents=True, exist_ok=True)
    log = Lines(out / "training.jsonl", anew=True) if run.accelerator.is_main_process else None
    while (progress := run.progress()) < 1.0:
        rate = run.step(progress)
        if run.steps % recipe.log_every == 0:
            record = run.record(rate)
            if log:
                log.append(json.dumps(record))
    seconds = round(run.seconds, 1)
    final = {
        "step": run.steps,
        "tokens": run.tokens,
        "held_out_loss": run.held_out_loss(),
        "train_seconds": seconds,
        "device": torch.cuda.get_device_name() if run.device.type == "cuda" else "cpu",
        "processes": run.accelerator.num_processes,
    }
    if log:
        log.append(json.dumps(final))
        log.close()
        save(run.accelerator.unwrap_model(run.model), run.tokenizer, out)
    run.accelerator.wait_for_everyone()
    run.accelerator.end_training()
    return final


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes a model rounded to bfloat16 and its tokenizer."""
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
