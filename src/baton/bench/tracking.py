"""Comparisons in Weights & Biases and TensorBoard: curves while answers arrive, then figures, generations and files.

Off unless a recipe or a flag asks for it. A tracker that fails is warned about and dropped: it never costs an answer.
While latencies are measured nothing is sent, since that would take time from what is measured.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from baton.bench import metrics
from baton.bench.figures import figures
from baton.bench.grading import Grade
from baton.bench.metrics import QUALITY, Key
from baton.bench.report import timeline
from baton.bench.report.folders import RunData, read_run
from baton.bench.verdict import verdict
from baton.config import ConfigError, Recipe, RecipeConfig, TensorboardConfig, TrackingConfig, WandbConfig
from baton.records import read_lines
from baton.trace import Trace

log = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
"""That W&B's server has to answer, before a comparison goes on without it."""
POINTS = 200
"""Of a curve, at most."""
QUESTIONS = 40
ARMS = 8
"""Whose generations are sent."""
TEXT = 4000
"""Characters of a generation."""
FILES = ("results.json", "report.html", "answers.jsonl", "config.json", "environment.jsonl", "failures.jsonl")
"""What goes along as the comparison's artifact. Traces stay where they are: there is no bound on their size."""
GENERATION = ("question", "why", "pass", "arm", "correct", "answer", "gold", "finish", "seconds", "tokens",
              "target_share", "text")  # fmt: skip


class Tracker(Protocol):
    """Where a comparison is tracked. Every method may raise; `Tracking` warns and goes on without it."""

    name: str

    def begin(self, folder: Path, recipe: RecipeConfig) -> None: ...

    def curve(self, arm: str, answers: int, values: Mapping[str, float]) -> None:
        """Figures of an arm after so many answers of the quality pass."""

    def end(self, run: RunData | None) -> None:
        """The run has ended, with all that its folder holds; None if that is nothing yet."""


class Tracking:
    """All trackers of a run; nothing of them raises."""

    def __init__(self, config: TrackingConfig | None):
        self._trackers: list[Tracker] = []
        if config is not None and config.wandb is not None:
            self._trackers.append(Wandb(config.wandb))
        if config is not None and config.tensorboard is not None:
            self._trackers.append(Tensorboard(config.tensorboard))
        self._begun = False
        self._every = 1
        self._answers: dict[str, int] = {}
        self._correct: dict[str, int] = {}

    def begin(self, folder: Path, recipe: RecipeConfig, expected: int, done: Mapping[Key, Grade]) -> None:
        """Opens the trackers of a run whose arms give `expected` answers each in the quality pass; some are there."""
        self._begun = True
        self._every = max(1, expected // POINTS)
        for (name, arm, _, _), grade in done.items():
            self._count(name, arm, grade)
        self._each(lambda t: t.begin(folder, recipe))

    def answered(self, name: str, arm: str, grade: Grade) -> None:
        """An answer is there; those of other passes than the quality pass are not followed."""
        count = self._count(name, arm, grade)
        if count and count % self._every == 0:
            values = {"accuracy": self._correct[arm] / count}
            self._each(lambda t: t.curve(arm, count, values))

    def _count(self, name: str, arm: str, grade: Grade) -> int:
        """Graded answers of the arm in the quality pass; 0 if this is none."""
        if name != QUALITY or grade is Grade.TIMEOUT:
            return 0
        self._answers[arm] = self._answers.get(arm, 0) + 1
        self._correct[arm] = self._correct.get(arm, 0) + (grade is Grade.CORRECT)
        return self._answers[arm]

    def end(self, folder: Path) -> None:
        """Sends what a run left in its folder, finished or not, and closes the trackers."""
        if not self._begun or not self._trackers:
            return
        run: RunData | None = None
        try:
            run = read_run(folder)
        except Exception as error:
            log.warning("tracking: %s cannot be read (%s), so its figures are not tracked", folder, error)
        self._each(lambda t: t.end(run))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:
                said = " ".join(str(error).split()) or type(error).__name__
                log.warning("tracking: %s failed and is dropped; the comparison goes on (%s)", tracker.name, said)
                self._trackers.remove(tracker)


def tracked(recipe: Recipe, names: Iterable[str]) -> Recipe:
    """The recipe with these trackers, where it does not set them already.

    Raises:
        ConfigError: there is no such tracker.
    """
    wanted = recipe.config.tracking or TrackingConfig()
    for name in names:
        if name not in TrackingConfig.model_fields:
            raise ConfigError(f"track: {name!r} is unknown; use {' or '.join(TrackingConfig.model_fields)}")
        if getattr(wanted, name) is None:
            wanted = TrackingConfig.model_validate({**wanted.model_dump(), name: {}})
    return replace(recipe, config=recipe.config.model_copy(update={"tracking": wanted}))


class Wandb:
    """One W&B run a comparison: a run that is resumed goes on under its id, which its folder keeps."""

    name = "wandb"

    def __init__(self, config: WandbConfig):
        self.config = config
        self.run: Any = None

    def begin(self, folder: Path, recipe: RecipeConfig) -> None:
        if find_spec("wandb") is None:
            raise RuntimeError("it is not installed; pip install 'batonlm[track]'")
        import wandb

        offline = self._offline(wandb)
        self.run = wandb.init(
            project=self.config.project,
            entity=self.config.entity,
            # The agent of a sweep brings an id of its own.
            id=None if _in_a_sweep() else run_id(folder / "wandb-id"),
            resume=None if offline or _in_a_sweep() else "allow",
            name=self.config.name or folder.name,
            tags=self.config.tags,
            job_type="compare",
            dir=folder,
            mode="offline" if offline else "online",
            config=recipe.model_dump(mode="json", exclude={"tracking"}),
            # The table belongs to the terminal, and sampling the machine would take time from what is measured.
            settings=wandb.Settings(console="off", x_disable_stats=True, silent=True, init_timeout=ANSWER_SECONDS),
        )
        for arm in recipe.arms:
            self.run.define_metric(f"{QUALITY}/{arm.name}/*", step_metric=f"{QUALITY}/{arm.name}/answers")

    def _offline(self, wandb: Any) -> bool:
        """As configured, else online where there is a key."""
        mode: str | None = self.config.mode
        if mode is None:
            mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        return bool(mode == "offline")

    def curve(self, arm: str, answers: int, values: Mapping[str, float]) -> None:
        known = {"answers": float(answers), **values}
        self.run.log({f"{QUALITY}/{arm}/{name}": value for name, value in known.items()})

    def end(self, run: RunData | None) -> None:
        try:
            if run is not None:
                self._send(run)
        finally:
            self.run.finish()

    def _send(self, run: RunData) -> None:
        import wandb

        summary = {f"{arm['label']}/{k}": v for arm in run.arms for k, v in flat(arm).items()}
        said = verdict(run.results).headline
        self.run.summary.update({**summary, "verdict": said, "valid": bool(run.results["valid"])})
        columns = list(dict.fromkeys(name for arm in run.arms for name in flat(arm)))
        arms = wandb.Table(
            columns=["arm", "router", *columns],
            data=[[a["label"], a["router"], *(flat(a).get(c) for c in columns)] for a in run.arms],
        )
        told = wandb.Table(
            columns=list(GENERATION), data=[[g[c] for c in GENERATION] for g in generations(run)],
            allow_mixed_types=True,
        )  # fmt: skip
        plots = {f"plots/{name}": wandb.Image(_pixels(f)) for name, f in figures(run.results, run.latencies).items()}
        shown: dict[str, Any] = {"arms": arms, "generations": told, **plots}
        if (page := run.path / "report.html").is_file():
            shown["report"] = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
        self.run.log(shown)
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", f"comparison-{run.name}")[:120], type="comparison")
        for name in FILES:
            if (run.path / name).is_file():
                artifact.add_file(str(run.path / name))
        self.run.log_artifact(artifact)


class Tensorboard:
    """Event files, in the run's folder unless the recipe names another."""

    name = "tensorboard"

    def __init__(self, config: TensorboardConfig):
        self.config = config
        self.writer: Any = None
        self.expected = 0

    def begin(self, folder: Path, recipe: RecipeConfig) -> None:
        if find_spec("tensorboard") is None:
            raise RuntimeError("it is not installed; pip install 'batonlm[track]'")
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(self.config.folder or str(folder / "tensorboard"))
        text = yaml.safe_dump(recipe.model_dump(mode="json", exclude={"tracking"}), sort_keys=False)
        self.writer.add_text("config", _code(text))

    def curve(self, arm: str, answers: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{QUALITY}/{arm}/{name}", value, answers)

    def end(self, run: RunData | None) -> None:
        try:
            if run is not None:
                self._send(run)
        finally:
            self.writer.close()

    def _send(self, run: RunData) -> None:
        for arm in run.arms:
            for name, value in flat(arm).items():
                self.writer.add_scalar(f"final/{arm['label']}/{name}", value)
        for name, figure in figures(run.results, run.latencies).items():
            self.writer.add_figure(f"plots/{name}", figure)
        self.writer.add_text("verdict", verdict(run.results).headline)
        for g in generations(run):
            about = ", ".join(f"{c} {g[c]}" for c in GENERATION if c not in {"question", "arm", "text"})
            self.writer.add_text(f"generations/{g['question']}/{g['arm']}", f"{about}\n\n{_code(g['text'])}")


def flat(arm: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an arm by path (`latency_s/p50`, `accuracy_ci/low`); what was not measured is left out."""
    out: dict[str, float] = {}
    for name, value in arm.items():
        if name in {"knobs", "speculation"} or isinstance(value, (str, bool)):
            continue
        if isinstance(value, Mapping):
            out |= {f"{name}/{inner}": v for inner, v in flat(value).items()}
        elif isinstance(value, list) and name.endswith("ci") and len(value) == 2:
            ends = zip(("low", "high"), value, strict=True)
            out |= {f"{name}/{end}": v for end, v in ends if v is not None}
        elif isinstance(value, (int, float)):
            out[name] = value
    return out


def generations(run: RunData) -> Iterator[dict[str, Any]]:
    """Generations that tell most about the arms, a bounded number, each with who wrote what."""
    wanted = run.chooser.chosen(metrics.baseline_label(run.arms), verdict(run.results).label, QUESTIONS)
    labels = [a["label"] for a in run.arms][:ARMS]
    if not (run.path / "traces.jsonl").is_file():
        return
    for asked, trace in timeline.read(read_lines(run.path / "traces.jsonl"), wanted, labels):
        row = metrics.answer_row(trace)
        yield {
            **{name: row[name] for name in ("question", "pass", "arm", "correct", "answer", "gold", "finish")},
            "why": wanted[asked],
            "seconds": row["seconds"],
            "tokens": row["tokens"],
            "target_share": trace.target_share,
            "text": timeline.shortened(_marked(trace), TEXT),
        }


def _marked(trace: Trace) -> str:
    """The answer, with its author before each change of hands."""
    parts, author = [], None
    for segment in trace.path():
        if segment.role is not author:
            author = segment.role
            parts.append(f"[{author.value}] ")
        parts.append(segment.text)
    return "".join(parts)


def _pixels(figure: Figure) -> npt.NDArray[np.uint8]:
    """`[height, width, 4]`."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def _code(text: str) -> str:
    """Text as Markdown that shows it as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _in_a_sweep() -> bool:
    return "WANDB_SWEEP_ID" in os.environ


def run_id(file: Path) -> str:
    """The id of a tracked run, kept in a file beside what is tracked."""
    if not file.is_file():
        file.write_text(secrets.token_hex(4), encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()
