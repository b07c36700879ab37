"""How a plan is shown: tables on a terminal, and the plot of speed-up against depth."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from baton.plan.advice import GateRow, LookaheadRow, Plan
from baton.plan.needs import Needs
from baton.plan.simulate import simulate_lookahead
from baton.plan.theory import Lookahead, Mode, lookahead
from baton.tables import table

PLOTTED = (0.3, 0.5, 0.63, 0.8)
"""Acceptances drawn beside the pair's own."""
DEPTHS = range(1, 11)


def show(plan: Plan, console: Console) -> None:
    """Tables, then the advice."""
    costs = plan.costs
    form = Lookahead.of(costs.target, costs.draft, costs.judge_s)
    console.print(
        f"[bold]{costs.name}[/]: c = {form.c:.3f} (draft step over target step and verifier), acceptance "
        f"{costs.acceptance.rate:.2f}, budget {costs.parallel}"
    )
    console.print(_lookahead_table(plan.rows, "Lookahead, one branch: speed-up over the target alone"))
    branches = f"{plan.best.width} {'branches' if plan.best.width > 1 else 'branch'}"
    tokens = f", {plan.best.tokens} tokens a pass" if plan.best.tokens > 1 else ""
    console.print(_lookahead_table([plan.best], f"Best under the budget: k = {plan.best.k}, {branches}{tokens}"))
    if plan.causes:
        console.print(_cause_table(plan))
    console.print(_gate_table(plan.gates))
    if plan.choices:
        console.print(_choice_table(plan))
    if plan.cue:
        cue = plan.cue
        console.print(
            f"Cue switching at target share {cue.target_share:.2f}: ideal {cue.ideal:.2f} x, with hand-overs "
            f"{cue.closed:.2f} x, simulated {cue.simulated.value:.2f} x"
        )
    if plan.speculation:
        verified, gain = plan.speculation
        console.print(f"Token-level speculation alone: {gain:.2f} x at {verified} tokens a pass")
    if plan.product is not None:
        console.print(
            f"Published product f(k1) g(k2) at the best setting: {plan.product:.2f} x; it takes the draft to gain from "
            f"speculation as much as the target"
        )
    console.print()
    for line in plan.advice:
        console.print(line, soft_wrap=True, highlight=False)


def show_needs(needs: Needs, console: Console) -> None:
    """What a recipe needs: time, then memory."""
    console.print(
        f"[bold]{needs.recipe}[/]: {needs.answers} answers an arm, {needs.tokens:.0f} tokens each as expected (budget "
        f"{needs.budget}), {needs.at_once} at once, GPUs: {needs.gpus}"
    )
    out = table("Expected of an arm", "", "1 at once, s", f"{needs.at_once} at once, s", "GPU hours")
    for row in needs.latencies:
        out.add_row(row.arm, f"{row.one_s:.1f}", f"{row.many_s:.1f}", f"{row.gpu_hours:.2f}")
    console.print(out)
    out = table("Memory", "", "weights, GB", "cache, GB", "tokens", "answers of the whole budget")
    for fit in needs.fits:
        tokens = "" if fit.tokens is None else f"{fit.tokens:,.0f}"
        answers = "" if fit.answers is None else f"{fit.answers:.1f}"
        cache = f"{fit.cache / 1e9:.1f}" if fit.cache > 0 else "does not fit"
        out.add_row(fit.role, f"{fit.weights / 1e9:.1f}", cache, tokens, answers)
    console.print(out)


def _lookahead_table(rows: list[LookaheadRow], title: str) -> Table:
    out = table(title, "", "k", "slots", "closed", "drawn", "equal", "given", "differs", "late", "sampled")
    for r in rows:
        out.add_row(
            r.mode if r.k > 1 else "target alone",
            str(r.k),
            str(r.slots),
            f"{r.closed:.3f}",
            f"{r.monte_carlo.value:.3f}",
            f"{r.equal_steps:.3f}",
            f"{r.speedup:.3f}",
            f"{r.deviation:+.1%}",
            f"{r.simulated.late:.1%}",
            f"{r.simulated.target_work:.2f}",
        )
    return out


def _cause_table(plan: Plan) -> Table:
    out = table("Why theory and simulation differ there", "one assumption after another", "speed-up", "differs")
    for cause in plan.causes:
        out.add_row(cause.assumption, f"{cause.speedup:.3f}", f"{cause.speedup / plan.best.closed - 1:+.1%}")
    return out


def _gate_table(rows: list[GateRow]) -> Table:
    title = "Gating: speed-up over the target alone; FLOPs over its FLOPs"
    out = table(title, "", "closed", "drawn", "given", "differs", "even at", "wasted", "decode", "prefill")
    for row in rows:
        flops = row.simulated.flops
        out.add_row(
            "optimistic" if row.optimistic else "sequential",
            f"{row.closed.speedup:.3f}",
            f"{row.monte_carlo.speedup:.3f}",
            f"{row.simulated.speedup:.3f}",
            f"{row.deviation:+.1%}",
            "never" if row.break_even is None else f"{row.break_even:.2f}",
            f"{row.simulated.wasted:.1%}",
            f"{flops.decode / flops.target_only:.2f}" if flops else "-",
            f"{flops.prefill / flops.target_only:.2f}" if flops else "-",
        )
    return out


def _choice_table(plan: Plan) -> Table:
    out = table("Gates on the given scores (optimistic)", "gate", "accepts", "speed-up", "why")
    for c in plan.choices:
        knobs = ", ".join(f"{k} {v:.3g}" for k, v in c.knobs.items())
        out.add_row(f"{c.gate} {knobs}".strip(), f"{c.accepts:.0%}", f"{c.speedup:.3f}", c.why)
    return out


def check_image(path: Path) -> None:
    """Whether `draw` can write there, asked before the simulations run.

    Raises:
        ValueError: the file's ending names no image format, or matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: matplotlib is not installed; `pip install matplotlib`") from None
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(
            f"plot: {path}: {path.suffix or 'no ending'} is no image format; use one of {', '.join(known)}"
        )


def draw(plan: Plan, path: Path, answers: int = 60, seed: int = 0) -> None:
    """Speed-up against depth for several acceptances: closed forms as lines, event simulations as given as points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    costs = plan.costs
    form = Lookahead.of(costs.target, costs.draft, costs.judge_s)
    own = round(costs.acceptance.rate, 2)
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    modes: tuple[Mode, ...] = ("sync", "async")
    for mode, axes in zip(modes, figure.subplots(1, 2, sharey=True), strict=True):
        for a in sorted({*PLOTTED, own}):
            closed = [form.base * lookahead(a, form.c, k, mode) if k > 1 else 1.0 for k in DEPTHS]
            (line,) = axes.plot(DEPTHS, closed, lw=2.2 if a == own else 1.2, label=f"acceptance {a:.2f}")
            points = [
                simulate_lookahead(
                    a,
                    k,
                    costs.target,
                    costs.draft,
                    mode=mode,
                    judge_s=costs.judge_s,
                    steps=costs.steps,
                    answers=answers,
                    seed=seed,
                ).speedup
                for k in DEPTHS
            ]
            axes.plot(DEPTHS, points, "o", ms=4, color=line.get_color())
        axes.axhline(1.0, color="0.6", lw=0.8)
        axes.set_title(f"{'synchronous' if mode == 'sync' else 'asynchronous'}, c = {form.c:.2f}")
        axes.set_xticks(DEPTHS)
        axes.set_xlabel("k, target steps in parallel")
    figure.axes[0].set_ylabel("speed-up over the target alone")
    figure.axes[0].legend(fontsize=8, title="lines: closed form\npoints: simulated", title_fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
