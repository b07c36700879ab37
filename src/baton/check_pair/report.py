"""The check of a pair as tables, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from baton.check_pair.advice import Advice, Verdict
from baton.check_pair.answers import Answers, Solved
from baton.check_pair.formats import Formats
from baton.tables import table

SCHEMA = 1
COLOURS = {Verdict.SUITS: "green", Verdict.DOUBTFUL: "yellow", Verdict.UNFIT: "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """All that was found out about a pair."""

    pair: str
    split: str
    formats: Formats
    answers: Answers | None
    remarks: Sequence[str]
    advice: Sequence[Advice]

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def show(check: Check, console: Console) -> None:
    """Prints the check, the most general first."""
    console.print(_formats(check))
    for role in ("target", "draft"):
        found = getattr(check.formats, role)
        console.print(f"{role}'s prompt: {found.prompt!r}", markup=False, style="dim")
        _warn(console, [f"{role}: {w}" for w in found.warnings])
    _warn(console, check.formats.warnings)
    for other in check.formats.vocabulary.first:
        console.print(f"id {other['id']}: {other['target']!r} / {other['draft']!r}", markup=False, style="dim")
    if check.answers is not None:
        console.print(_solved(check.answers))
        console.print(_steps(check.answers))
        console.print(_agreement(check.answers))
        _warn(console, check.answers.warnings)
    _warn(console, check.remarks)
    console.print(_advice(check.advice))


def _warn(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(f"! {line}", markup=False, style="yellow")


def _formats(check: Check) -> Table:
    out = table(f"Pair {check.pair}", "", "target", "draft", breaking=("target", "draft"))
    target, draft, match = check.formats.target, check.formats.draft, check.formats.vocabulary
    for name, value in (
        ("model", lambda f: escape(f.model)),
        ("architecture", lambda f: f.architecture),
        ("tokens (rows of the model)", lambda f: f"{f.tokens} ({f.vocab_size})"),
        ("thinking opened by", lambda f: f.thinking),
        ("thinking can be switched off", lambda f: _yes(f.switch)),
        ("end of thinking", lambda f: f.end_of_thinking),
        ("history keeps thinking", lambda f: "-" if f.drops_thinking is None else _yes(not f.drops_thinking)),
        ("system prompt comes through", lambda f: _yes(f.system)),
        ("end of text, tokenizer", lambda f: escape(" ".join(f.end_of_text["tokenizer"]))),
        ("end of text, generation config", lambda f: escape(" ".join(f.end_of_text["generation_config"]) or "-")),
        ("context", lambda f: str(f.context or "-")),
    ):
        out.add_row(name, value(target), value(draft))
    shared = "one, shared" if match.shared else f"two; {match.differing} ids differ"
    out.add_row("vocabulary", shared, "")
    return out


def _solved(answers: Answers) -> Table:
    out = table("Solved alone", "level", "n", "target", "draft", "95 %", "draft only", "95 %")
    for level, s in (*answers.by_level.items(), ("all", answers.all)):
        out.add_row(level, str(s.n), f"{s.target:.0%}", f"{s.draft:.0%}", *_last(s))
    return out


def _last(s: Solved) -> tuple[str, str, str]:
    return _interval(s.draft_ci), str(s.draft_only), _interval(s.draft_only_ci)


def _steps(answers: Answers) -> Table:
    out = table("Steps", "", "target", "draft")
    target, draft = answers.steps["target"], answers.steps["draft"]
    for name, field, form in (
        ("text in steps parted by blank lines", "in_steps", ".0%"),
        ("steps an answer", "steps", ".1f"),
        ("tokens a step, median", "tokens", ".0f"),
        ("tokens a step, P90", "tokens_p90", ".0f"),
        ("answers whose thinking ends", "thinking_closed", ".0%"),
        ("answers with \\boxed{}", "boxed", ".0%"),
        ("answers cut by the budget", "truncated", ".0%"),
    ):
        out.add_row(name, format(getattr(target, field), form), format(getattr(draft, field), form))
    return out


def _agreement(answers: Answers) -> Table:
    a = answers.agreement
    out = table("Would the draft have written it?", "", "value")
    rows = [
        (f"the same step ({a.steps} steps)", f"{a.same_step:.1%} {_interval(a.same_step_ci)}"),
        ("a step with the same first token", f"{a.same_first:.1%}"),
        (f"the same token, greedily ({a.tokens} tokens)", f"{a.same_token:.1%}"),
        ("mean margin of the draft", f"{a.margin:.3f}"),
        ("tokens it is sure of", f"{a.sure:.1%}"),
        ("the same token where it is sure", "-" if a.same_where_sure is None else f"{a.same_where_sure:.1%}"),
        ("surprise a token, nats", f"{a.nats:.3f}"),
        *((f"{role}, ms a token", f"{s * 1e3:.2f}") for role, s in answers.seconds_a_token.items()),
        ("a target token costs draft tokens", f"{answers.cost_ratio:.1f}"),
    ]
    for row in rows:
        out.add_row(*row)
    return out


def _advice(advice: Sequence[Advice]) -> Table:
    columns = ("router", "", "because")
    out = table("Routers", *columns, words=columns)
    for verdict in Verdict:
        for a in advice:
            if a.verdict is verdict:
                said = escape("; ".join(a.reasons) or "nothing speaks against it")
                out.add_row(a.router, f"[{COLOURS[verdict]}]{verdict}[/]", said)
    return out


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.0%}-{interval[1]:.0%}"
