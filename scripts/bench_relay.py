"""Times a relay of two vLLM engines at real size, against the target alone and the target cut into the same segments.

The models have the shapes of published ones and no weights: what a token is does not matter to the time it takes. Who
writes how many tokens is a schedule in a file, so that every run relays the same way. For each number of answers at
once there is a warm-up, then the three arms take turns, three times over; a ratio compares two arms of one turn, and
the median of the three is reported. Every turn of an arm is appended to the results as it ends: the same command goes
on where an interrupted one stopped.

    python scripts/bench_relay.py --out benchmarks/relay/h200.json
    python scripts/bench_relay.py --out benchmarks/relay/h200-eagle3.json --acceptance-length 2.4
    python scripts/bench_relay.py --out /tmp/tiny.json --target tiny --draft tiny --cache-mb 64 --at-once 1 --answers 2
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from baton.bench import environment
from baton.boundary import SegmentMatcher
from baton.engines.base import Call, Prefix, PrefixSession, Speculation
from baton.engines.settings import VllmSettings
from baton.engines.vllm import Replica
from baton.engines.vllm_options import engine_arguments, on_cpu
from baton.vocabulary import Vocabulary

VOCABULARY = 151_936
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "head_dim": 128,
    "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False,
    "rope_theta": 1_000_000, "torch_dtype": "bfloat16", "eos_token_id": 151_645,
}  # fmt: skip
SIZES = {
    # layers, width, inner width, heads, key heads
    "32b": (64, 5120, 25_600, 64, 8),
    "8b": (36, 4096, 12_288, 32, 8),
    "1.7b": (28, 2048, 6144, 16, 8),
    "0.6b": (28, 1024, 3072, 16, 8),
    "tiny": (2, 128, 256, 2, 1),
}
TARGET, DRAFT = "target", "draft"
ARMS = ("target", "cut", "relay")
"""One request an answer; the target cut into the schedule's segments; the schedule."""
SCHEDULE = Path(__file__).parent.parent / "benchmarks" / "relay" / "schedule.json"


@dataclass(frozen=True)
class Schedule:
    """Who writes how many tokens, answer by answer, after prompts of one length."""

    prompt: int
    answers: list[list[tuple[str, int]]]

    @classmethod
    def draw(cls, answers: int, prompt: int, tokens: int, target: float, draft: float, seed: int) -> Schedule:
        """Segments of exponential length, means in tokens, the target's first, to `tokens` an answer."""
        rng = random.Random(seed)
        drawn = []
        for _ in range(answers):
            segments: list[tuple[str, int]] = []
            left = tokens
            for role in itertools.cycle((TARGET, DRAFT)):
                length = min(left, 1 + round(rng.expovariate(1 / (target if role == TARGET else draft))))
                segments.append((role, length))
                left -= length
                if not left:
                    break
            drawn.append(segments)
        return cls(prompt, drawn)

    @classmethod
    def load(cls, file: Path) -> Schedule:
        data = json.loads(file.read_text())
        return cls(data["prompt"], [[(role, tokens) for role, tokens in answer] for answer in data["answers"]])

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n  ".join(json.dumps(answer) for answer in self.answers)
        file.write_text(f'{{"prompt": {self.prompt}, "answers": [\n  {lines}\n]}}\n')

    @property
    def share(self) -> float:
        """The target's share of all tokens."""
        segments = [segment for answer in self.answers for segment in answer]
        return sum(n for role, n in segments if role == TARGET) / sum(n for _, n in segments)


@dataclass
class Turn:
    """One turn of an arm: what each answer took, and where its time went."""

    at_once: int
    arm: str
    turn: int
    seconds: list[float] = field(default_factory=list)
    """By answer."""
    tokens: dict[str, int] = field(default_factory=lambda: {TARGET: 0, DRAFT: 0})
    decode_s: dict[str, float] = field(default_factory=lambda: {TARGET: 0.0, DRAFT: 0.0})
    """From each segment's first token to its last, summed."""
    decoded: dict[str, int] = field(default_factory=lambda: {TARGET: 0, DRAFT: 0})
    """Tokens after each segment's first, summed."""
    first_s: dict[str, list[float]] = field(default_factory=lambda: {TARGET: [], DRAFT: []})
    """Of each segment but an answer's first: from its request to its first token."""
    cached: int = 0
    """Prefix tokens found in a cache."""
    prompt: int = 0
    """Prefix tokens sent."""

    @property
    def key(self) -> tuple[int, str, int]:
        return self.at_once, self.arm, self.turn


def model_folder(base: Path, size: str, eagle_for: str | None = None) -> Path:
    """A folder with a config.json of a size; with `eagle_for`, of an Eagle-3 head for that size."""
    layers, width, inner, heads, key_heads = SIZES[size]
    config: dict[str, Any] = {
        **QWEN3, "num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner,
        "num_attention_heads": heads, "num_key_value_heads": key_heads, "tie_word_embeddings": width < 4096,
    }  # fmt: skip
    folder = base / size
    if eagle_for is not None:
        folder = base / f"eagle3-{eagle_for}"
        states = [1, layers // 2 - 1, layers - 4] if layers > 4 else [0, 1, 1]
        config |= {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
            "draft_vocab_size": min(VOCABULARY, 32_000), "tie_word_embeddings": False,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": states},
        }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def start(asked: argparse.Namespace, base: Path, role: str, vocabulary: Vocabulary) -> Replica:
    """One engine with random weights."""
    size = asked.target if role == TARGET else asked.draft
    speculation = None
    args: dict[str, Any] = {"load_format": "dummy"}
    if role == TARGET and asked.acceptance_length:
        head = model_folder(base, size, eagle_for=size)
        speculation = Speculation("eagle3", asked.speculative_tokens, model=str(head))
        args["speculative_config"] = {
            "rejection_sample_method": "synthetic", "synthetic_acceptance_length": asked.acceptance_length,
        }  # fmt: skip
    memory = asked.target_memory if role == TARGET else asked.draft_memory
    devices = asked.target_devices if role == TARGET else asked.draft_devices
    settings = VllmSettings(
        devices=devices, tensor_parallel=len(devices or (0,)), memory=None if on_cpu() else memory,
        context=asked.context, block=asked.block, args=args,
    )  # fmt: skip
    arguments = engine_arguments(
        str(model_folder(base, size)), dtype="auto", cache_bytes=asked.cache_mb << 20, max_batch=max(asked.at_once),
        trust_remote_code=False, revision=None, speculative=speculation, settings=settings,
    )  # fmt: skip
    del arguments["tokenizer"]
    return Replica(
        arguments, threads=None, entropy=settings.logprobs, vocabulary=vocabulary, speculation=speculation,
        numbers=itertools.count(1),
    )  # fmt: skip


class Bench:
    """Two engines and the turns that are measured on them."""

    def __init__(self, engines: dict[str, Replica], vocabulary: Vocabulary, schedule: Schedule):
        self.engines, self.vocabulary, self.schedule = engines, vocabulary, schedule

    async def turn(self, at_once: int, arm: str, turn: int, answers: int) -> Turn:
        """`answers` answers, `at_once` of them in flight at any time, each after a prompt of its own."""
        measured = Turn(at_once, arm, turn)
        for engine in self.engines.values():
            engine.forget()
        plans = iter([(n, self.schedule.answers[n % len(self.schedule.answers)]) for n in range(answers)])

        async def work() -> None:
            for n, segments in plans:
                prompt = self._prompt(turn * 1000 + n)
                begun = time.perf_counter()
                await self._answer(measured, prompt, _plan(arm, segments))
                measured.seconds.append(time.perf_counter() - begun)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
        return measured

    def _prompt(self, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [rng.randrange(1000, len(self.vocabulary)) for _ in range(self.schedule.prompt)]

    async def _answer(self, measured: Turn, prompt: list[int], segments: Sequence[tuple[str, int]]) -> None:
        sessions = {role: PrefixSession(engine) for role, engine in self.engines.items()}
        prefix = Prefix(prompt)
        clock = asyncio.get_running_loop().time
        for n, (role, tokens) in enumerate(segments):
            matcher = SegmentMatcher((), self.vocabulary, thinking=False, cap=tokens)
            call = Call(prefix, matcher, tokens)
            submitted = clock()
            first: float | None = None
            last, beside = 0.0, 0
            async with aclosing(sessions[role].generate(call)) as chunks:
                async for chunk in chunks:
                    if chunk.ids and first is None:
                        # The tokens of the first step, several where the model speculates.
                        first, beside = chunk.first, len(chunk.ids)
                    last = chunk.last
            assert first is not None
            measured.tokens[role] += tokens
            measured.decode_s[role] += last - first
            measured.decoded[role] += len(matcher.ids) - beside
            if n:
                measured.first_s[role].append(first - submitted)
            measured.cached += call.usage.cached
            measured.prompt += call.usage.prompt
            prefix = prefix.extend(matcher.ids[:tokens])


def _plan(arm: str, segments: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    if arm == "target":
        return [(TARGET, sum(tokens for _, tokens in segments))]
    return [(TARGET if arm == "cut" else role, tokens) for role, tokens in segments]


class Results:
    """The turns measured so far, in a file."""

    def __init__(self, file: Path, about: dict[str, Any]):
        self.file = file
        self.turns: list[Turn] = []
        if file.is_file():
            data = json.loads(file.read_text())
            if data["about"] != about:
                sys.exit(f"--out: {file} was measured with other settings; give another file")
            self.environments = data["environments"]
            turns = [Turn(**turn) for turn in data["turns"]]
            # A ratio is taken within a run: a turn that some arm did not come to is measured again.
            arms = Counter((turn.at_once, turn.turn) for turn in turns)
            self.turns = [turn for turn in turns if arms[turn.at_once, turn.turn] == len(ARMS)]
        else:
            self.environments = []
        self.about = about
        self.environments.append(environment.describe())

    def has(self, key: tuple[int, str, int]) -> bool:
        return any(turn.key == key for turn in self.turns)

    def append(self, turn: Turn) -> None:
        self.turns.append(turn)
        data = {"about": self.about, "environments": self.environments, "summary": self.summary(),
                "turns": [asdict(t) for t in self.turns]}  # fmt: skip
        self.file.parent.mkdir(parents=True, exist_ok=True)
        whole = self.file.with_suffix(".part")
        whole.write_text(json.dumps(data, indent=1) + "\n")
        whole.replace(self.file)

    def summary(self) -> list[dict[str, Any]]:
        """By number of answers at once: medians over the turns that all three arms have had."""
        rows = []
        for at_once in sorted({turn.at_once for turn in self.turns}):
            turns = [{t.arm: t for t in self.turns if (t.at_once, t.turn) == (at_once, n)} for n in range(100)]
            whole = [t for t in turns if len(t) == len(ARMS)]
            if whole:
                rows.append({"at_once": at_once, "turns": len(whole), **_figures(whole)})
        return rows


def _figures(turns: Sequence[dict[str, Turn]]) -> dict[str, float]:
    def median(value: Callable[[dict[str, Turn]], float]) -> float:
        return round(statistics.median(value(turn) for turn in turns), 4)

    def p50(turn: Turn) -> float:
        return statistics.median(turn.seconds)

    def step_ms(turn: Turn, role: str) -> float:
        return 1e3 * turn.decode_s[role] / max(1, turn.decoded[role])

    def first_ms(turn: Turn, role: str) -> float:
        return 1e3 * statistics.median(turn.first_s[role] or [0.0])

    def ideal(turn: dict[str, Turn]) -> float:
        """If each token took what it takes its model alone: the target alone, the draft as it relayed."""
        tokens = turn["relay"].tokens
        mine = tokens[TARGET] * step_ms(turn["target"], TARGET) + tokens[DRAFT] * step_ms(turn["relay"], DRAFT)
        return (tokens[TARGET] + tokens[DRAFT]) * step_ms(turn["target"], TARGET) / mine

    return {
        "relay_over_target": median(lambda t: p50(t["target"]) / p50(t["relay"])),
        "cut_over_target": median(lambda t: p50(t["target"]) / p50(t["cut"])),
        "relay_over_cut": median(lambda t: p50(t["cut"]) / p50(t["relay"])),
        "ideal_over_target": median(ideal),
        "target_p50_s": median(lambda t: p50(t["target"])),
        "target_ms_a_token": median(lambda t: step_ms(t["target"], TARGET)),
        "cut_ms_a_token": median(lambda t: step_ms(t["cut"], TARGET)),
        "relay_target_ms_a_token": median(lambda t: step_ms(t["relay"], TARGET)),
        "relay_draft_ms_a_token": median(lambda t: step_ms(t["relay"], DRAFT)),
        "cut_first_token_ms": median(lambda t: first_ms(t["cut"], TARGET)),
        "relay_target_first_token_ms": median(lambda t: first_ms(t["relay"], TARGET)),
        "relay_draft_first_token_ms": median(lambda t: first_ms(t["relay"], DRAFT)),
        "relay_prefix_cached": median(lambda t: t["relay"].cached / t["relay"].prompt),
    }


def arguments() -> argparse.Namespace:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results; an interrupted run goes on from there")
    parser.add_argument("--schedule", type=Path, default=SCHEDULE, help="who writes how many tokens")
    parser.add_argument("--target", choices=SIZES, default="32b")
    parser.add_argument("--draft", choices=SIZES, default="1.7b")
    parser.add_argument("--target-memory", type=float, default=0.62, help="share of each of its GPUs")
    parser.add_argument("--draft-memory", type=float, default=0.20)
    parser.add_argument("--target-devices", type=numbers, help="GPUs, such as 0,1; the first if left out")
    parser.add_argument("--draft-devices", type=numbers)
    parser.add_argument("--cache-mb", type=int, default=1024, help="of each engine, on a CPU")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--block", type=int, help="tokens in a block of the prefix cache")
    parser.add_argument("--at-once", type=numbers, default=(1, 4, 16), help="answers in flight")
    parser.add_argument("--answers", type=int, default=4, help="answers a turn, and at least as many as are at once")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--acceptance-length", type=float, help="Eagle-3 on the target, accepting so many tokens a step"
    )
    parser.add_argument("--speculative-tokens", type=int, default=3)
    parser.add_argument("--draw-schedule", metavar="SEED", type=int, help="write a new schedule, and stop")
    return parser.parse_args()


async def measure(asked: argparse.Namespace, results: Results, schedule: Schedule) -> None:
    """All turns that the results do not have yet."""
    keys = itertools.product(asked.at_once, range(asked.turns), ARMS)
    todo = [(at_once, turn) for at_once, turn, arm in keys if not results.has((at_once, arm, turn))]
    if not todo:
        return
    vocabulary = Vocabulary([b"a"] * VOCABULARY, lambda text: [], frozenset())
    engines: dict[str, Replica] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for role in (TARGET, DRAFT):
                engines[role] = start(asked, Path(folder), role, vocabulary)
            bench = Bench(engines, vocabulary, schedule)
            for at_once in asked.at_once:
                if not any(n == at_once for n, _ in todo):
                    continue
                answers = max(asked.answers, at_once)
                for arm in ARMS:
                    await bench.turn(at_once, arm, -1, at_once)
                for turn in range(asked.turns):
                    for arm in (*ARMS[turn % 3 :], *ARMS[: turn % 3]):
                        if not results.has((at_once, arm, turn)):
                            measured = await bench.turn(at_once, arm, turn, answers)
                            results.append(measured)
                            p50 = statistics.median(measured.seconds)
                            print(f"{at_once} at once, turn {turn + 1}, {arm}: {p50:.3f} s an answer", flush=True)
        finally:
            await asyncio.gather(*(engine.close() for engine in engines.values()))


def main() -> None:
    asked = arguments()
    if asked.draw_schedule is not None:
        schedule = Schedule.draw(16, prompt=300, tokens=400, target=46, draft=20, seed=asked.draw_schedule)
        schedule.save(asked.schedule)
        print(f"target share {schedule.share:.3f} -> {asked.schedule}")
        return
    schedule = Schedule.load(asked.schedule)
    settings = {
        name: value for name, value in vars(asked).items() if name not in ("out", "at_once", "turns", "draw_schedule")
    }
    settings["schedule"] = asked.schedule.name
    about = json.loads(json.dumps(settings)) | {"target_share": round(schedule.share, 4)}
    results = Results(asked.out, about)
    asyncio.run(measure(asked, results, schedule))
    for row in results.summary():
        print(json.dumps(row))


if __name__ == "__main__":
    main()
