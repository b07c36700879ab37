"""Models of the shapes of published ones, without weights: what a token is does not matter to the time it takes.

vLLM gives them random weights, and no token ends the text. In this process they have no tokenizer, and prompts are
token ids; servers that are spoken to in text have one of made-up words, each a token.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
import yaml

from baton import nano
from baton.engines.base import Speculation
from baton.engines.settings import VllmSettings
from baton.engines.vllm import Replica, VllmEngine
from baton.engines.vllm_options import engine_arguments
from baton.scorers.checkpoint import Checkpoint
from baton.scorers.prm import Prm
from baton.scorers.prm_formats import LedgerFormat
from baton.trace import Role
from baton.vocabulary import Vocabulary

VOCABULARY = 151_936
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "head_dim": 128,
    "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False,
    "rope_theta": 1_000_000, "torch_dtype": "bfloat16", "eos_token_id": 151_645,
}  # fmt: skip
SHAPES = {
    # layers, width, inner width, heads, key heads
    "32b": (64, 5120, 25_600, 64, 8),
    "8b": (36, 4096, 12_288, 32, 8),
    "1.7b": (28, 2048, 6144, 16, 8),
    "0.6b": (28, 1024, 3072, 16, 8),
    "tiny": (2, 128, 256, 2, 1),
}
"""Of Qwen3, by size; the last one is for tests."""
SCORED_AT_ONCE = 32
"""Sequences in a step of a reward model."""
DRAFT_VOCABULARY = 32_000
"""Of an Eagle-3 head."""


@dataclass(frozen=True)
class Weightless:
    """One model of a size, and how vLLM runs it."""

    size: str
    cache_mb: int
    max_batch: int
    settings: VllmSettings = field(default_factory=VllmSettings)
    eagle3: Mapping[str, Any] = field(default_factory=dict)
    """`tokens` proposed for a forward and the `length` accepted in the mean, the model's own token included; none
    where it is empty."""

    def start(self, base: Path) -> VllmEngine:
        """The engine; its configuration is written below `base`."""
        speculation, more = None, {"load_format": "dummy", **self.settings.args}
        if self.eagle3:
            speculation = Speculation("eagle3", self.eagle3["tokens"], model=str(_head(base, self.size)))
            more["speculative_config"] = {
                "rejection_sample_method": "synthetic", "synthetic_acceptance_length": self.eagle3["length"],
            }  # fmt: skip
        settings = replace(self.settings, args=more)
        arguments = engine_arguments(
            str(_model(base, self.size)), dtype="auto", cache_bytes=self.cache_mb << 20, max_batch=self.max_batch,
            trust_remote_code=False, revision=None, speculative=speculation, settings=settings,
        )  # fmt: skip
        del arguments["tokenizer"]
        vocabulary = wordless()
        replica = Replica(
            arguments, threads=None, entropy=settings.logprobs, vocabulary=vocabulary, speculation=speculation,
            numbers=itertools.count(1),
        )  # fmt: skip
        return VllmEngine([replica], None, vocabulary, speculation=speculation)


def reward_model(base: Path, size: str, cache_mb: int, settings: VllmSettings) -> Prm:
    """A served process reward model of a size, in vLLM's pooling runner: a sequence classifier, which finds an answer's
    beginning in its cache."""
    from baton.scorers.checkpoint import pooled_runner

    shape = _config(size) | {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1, "pad_token_id": 0}
    folder = _folder(base / f"reward-{size}", shape)
    # The runner does not start without a tokenizer, which it is never asked for.
    for file in nano.models()["draft"].glob("tokenizer*.json"):
        shutil.copy(file, folder)
    checkpoint = Checkpoint(folder, torch.device("cpu"), "auto")
    more = {"load_format": "dummy", **settings.args}
    model = pooled_runner().PooledPrm(
        checkpoint, replace(settings, args=more), cache_bytes=cache_mb << 20, max_batch=SCORED_AT_ONCE
    )
    return Prm("reward model", model, LedgerFormat(wordless(), {}), max_batch=SCORED_AT_ONCE)


def write_pair(folder: Path, sizes: Mapping[Role, str], cache_mb: Mapping[Role, int], settings: VllmSettings) -> Path:
    """Writes both models and the YAML of their pair, for `baton up`."""
    further = {name: value for name, value in asdict(settings).items() if value != getattr(VllmSettings(), name)}
    further["args"] = {"load_format": "dummy", **settings.args}
    pair: dict[str, Any] = {"name": "weightless"}
    for role, size in sizes.items():
        # Without an end of text, which a random model would sample some time.
        _tokenizer().save_pretrained(_folder(folder / size, _config(size) | {"eos_token_id": None}))
        pair[str(role)] = {
            "engine": "vllm", "model": f"./{size}", "cache_mb": cache_mb[role], "max_batch": 8, "vllm": further,
        }  # fmt: skip
    file = folder / "pair.yaml"
    file.write_text(yaml.safe_dump(pair, sort_keys=False))
    return file


def _tokenizer() -> Any:
    """Of words that begin with a blank, so that text is tokens as it stands, wherever it is cut."""
    end = "<|endoftext|>"
    letters = ("".join(word) for word in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=4))
    words = [end, "a", *(f"Ġ{word}" for word in itertools.islice(letters, VOCABULARY - 2))]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=end))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end, unk_token=end)


def wordless() -> Vocabulary:
    """A vocabulary whose tokens all read alike; none ends a step."""
    return Vocabulary([b"a"] * VOCABULARY, lambda text: [], frozenset())


def _config(size: str) -> dict[str, Any]:
    layers, width, inner, heads, key_heads = SHAPES[size]
    return {
        **QWEN3, "num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner,
        "num_attention_heads": heads, "num_key_value_heads": key_heads, "tie_word_embeddings": width < 4096,
    }  # fmt: skip


def _model(base: Path, size: str) -> Path:
    """A folder that holds the configuration of a size."""
    return _folder(base / size, _config(size))


def _head(base: Path, size: str) -> Path:
    """A folder that holds the configuration of an Eagle-3 head for a size."""
    layers = SHAPES[size][0]
    states = [1, layers // 2 - 1, layers - 4] if layers > 4 else [0, 1, 1]
    return _folder(
        base / f"eagle3-{size}",
        _config(size)
        | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
            "draft_vocab_size": DRAFT_VOCABULARY, "tie_word_embeddings": False,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": states},
        },
    )  # fmt: skip


def _folder(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
