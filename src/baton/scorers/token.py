"""Token heads: small networks that give each token a number while it is written, for `Learned` boundaries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from baton.boundary import Seen
from baton.engines.base import Engine, LoadError
from baton.scorers.base import TokenReader
from baton.scorers.heads import Head, check_weights
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import TokenConfig

FLOOR = -30.0
"""Log-probability (nats) of likeliest tokens that are not there, and the least one that is told apart."""


@dataclass(frozen=True, slots=True)
class TokenAbout:
    """What a head reads and says."""

    role: str
    """Whose tokens it reads: `draft` or `target`."""
    model: str
    """Checkpoint of that role that it was trained on."""
    vocabulary: str
    """Fingerprint of the model's vocabulary."""
    width: int
    """Of the hidden states that it reads; 0 if it reads none."""
    top: int
    """Likeliest tokens whose log-probabilities it reads; 0 for none."""
    embedding: int
    """Width of the model's input embeddings, of which it reads the token's; 0 if it reads none."""
    hidden: int
    blocks: int
    label: str
    """What its number is the chance of: `diverges` or `harm`."""
    threshold: float
    """Found on the held-out questions, as `chosen` says."""
    chosen: str
    weights: str | None = None
    """Digest of that checkpoint's weights (`fingerprint.of_weights`); None of one from the hub."""

    @property
    def numbers(self) -> int:
        """Of what is read beside the embedding."""
        return self.width + self.top


class Block(nn.Module):
    """A residual block with its norm before it."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


class TokenHead(Head):
    """Logits of tokens `[...]` from what was read of them: R2R's residual network (arXiv 2505.21600), standardised.

    It sees the state that predicted the token, the log-probabilities of the likeliest tokens there, likeliest first,
    and the token's input embedding, which is the model's own and is neither trained nor stored.
    """

    def __init__(self, about: TokenAbout, table: Tensor | None = None, dropout: float = 0.0):
        """`table` `[vocabulary, embedding]` are the model's input embeddings, where the head reads them."""
        super().__init__(about.numbers)
        self.table: Tensor | None
        self.register_buffer("table", None if table is None else table.float(), persistent=False)
        self.first = nn.Linear(about.numbers + about.embedding, about.hidden)
        self.blocks = nn.Sequential(*(Block(about.hidden, dropout) for _ in range(about.blocks)))
        self.norm = nn.LayerNorm(about.hidden)
        self.last = nn.Linear(about.hidden, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, numbers: Tensor, tokens: Tensor) -> Tensor:
        """`numbers` `[..., width + top]`, `tokens` `[...]` as ids."""
        inputs = self.standard(numbers)
        if self.table is not None:
            inputs = torch.cat((inputs, self.table[tokens]), -1)
        logits: Tensor = self.last(self.norm(self.blocks(self.first(inputs))))[..., 0]
        return logits

    @classmethod
    def load(cls, folder: Path, table: Tensor | None) -> tuple[TokenHead, TokenAbout]:
        """Raises LoadError if the folder holds no token head, or `table` is not that of its model."""
        about = read_about(folder)
        if about.embedding and (table is None or table.shape[1] != about.embedding):
            found = "none" if table is None else str(table.shape[1])
            raise LoadError(
                f"{folder}: it reads embeddings of width {about.embedding} and the {about.role} gives {found}; use "
                "engine transformers and the model that it was trained on"
            )
        try:
            head = cls(about, table if about.embedding else None)
            head.restore(folder)
        except (OSError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise LoadError(f"{folder}: its weights cannot be read ({said}); train it again") from error
        return head.eval(), about


def read_about(folder: Path) -> TokenAbout:
    """Raises LoadError if the folder holds no token head."""
    try:
        return TokenAbout(**json.loads((folder / TokenHead.about).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        said = " ".join(str(error).split())
        raise LoadError(
            f"{folder}: it holds no token head ({said}); give what train_token_router.py or train_segmenter.py wrote"
        ) from error


def top_numbers(top: Any, count: int) -> list[float]:
    """The `count` greatest log-probabilities of (id, log-probability) pairs, filled up where there are fewer."""
    found = [max(FLOOR, logprob) for _, logprob in top[:count]]
    return found + [FLOOR] * (count - len(found))


class Token(TokenReader):
    """A token head and the model that it reads."""

    def __init__(self, name: str, head: TokenHead, about: TokenAbout):
        self.name, self.head, self.about = name, head, about
        self.role = Role(about.role)
        self.top, self.reads_hidden, self.threshold = about.top, about.width > 0, about.threshold

    @classmethod
    def load(cls, name: str, config: TokenConfig, engines: Mapping[Role, Engine], base: Path) -> Token:
        """From a pair's configuration.

        Raises:
            LoadError: it is no token head, or the role's model or engine does not give what it reads.
        """
        from baton.config import located

        folder = Path(located(config.model, base))
        about = read_about(folder)
        engine = engines[Role(about.role)]
        if about.width and engine.kind != "transformers":
            raise LoadError(
                f"kind: the head reads the {about.role}'s hidden states, which engine {engine.kind!r} does not give; "
                "use engine transformers for it, or a head that reads log-probabilities alone"
            )
        if engine.vocabulary.fingerprint != about.vocabulary:
            raise LoadError(
                f"{config.model}: the head reads {about.model}, and the {about.role} has another vocabulary; train one "
                "on this pair"
            )
        check_weights(config.model, about.model, about.weights, about.role, engine)
        head, about = TokenHead.load(folder, engine.embeddings() if about.embedding else None)
        return cls(name, head, about)

    def read(self, seen: Seen) -> float:
        """The head's chance for a token, in [0, 1].

        Raises:
            ValueError: the engine gave no hidden state or likeliest tokens, or the state has another width.
        """
        parts = []
        if self.about.width:
            if seen.hidden is None or seen.hidden.shape != (self.about.width,):
                found = "none" if seen.hidden is None else str(tuple(seen.hidden.shape))
                raise ValueError(
                    f"scorer {self.name!r}: it reads states of width {self.about.width} of {self.about.model}, and the "
                    f"engine gave {found}; train a head on this pair"
                )
            parts.append(seen.hidden.float())
        if self.top:
            if not seen.top:
                raise ValueError(f"scorer {self.name!r}: the engine gave no log-probabilities; use one that gives them")
            parts.append(torch.tensor(top_numbers(seen.top, self.top)))
        device = parts[0].device
        if self.head.mean.device != device:
            self.head.to(device)
        with torch.inference_mode():
            numbers = torch.cat([part.to(device) for part in parts])
            number: float = self.head(numbers, torch.tensor(seen.token, device=device)).sigmoid().item()
        return number
