"""The nano pair's tokenizer: byte-level BPE over Qwen's split, digits alone, `.\\n\\n` one token."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from baton.nano.language import Judged, Worked

SIZE = 1000
END_OF_TEXT, START, END, THINK, END_THINK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is not defined or enable_thinking %}{{- '<think>\n' }}{%- endif %}"
    "{%- endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of `SIZE` tokens, all 256 bytes and the five special ones among them.

    `<think>` and `</think>` are added but not special, as in Qwen3, so that they survive `skip_special_tokens`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - 5, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (END_OF_TEXT, START, END)])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in (THINK, END_THINK)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END_OF_TEXT,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def problem_text(question: str, worked: Worked) -> str:
    """A question and its worked solution as the models see them."""
    return f"{START}user\n{question}{END}\n{START}assistant\n{THINK}\n{worked.text}{END}\n"


def judge_text(judged: Judged) -> str:
    """A judging conversation; further turns follow as earlier assistant turns do in the chat template."""
    turns = [(judged.prompt, judged.verdict), *judged.further]
    return "".join(f"{START}user\n{asked}{END}\n{START}assistant\n{verdict}{END}\n" for asked, verdict in turns)
