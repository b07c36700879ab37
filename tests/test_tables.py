"""Tables show whole figures in a narrow terminal."""

from __future__ import annotations

import io

from rich.console import Console

from baton.tables import counted, table


def printed(out, width: int) -> list[str]:
    shown = io.StringIO()
    Console(file=shown, width=width, force_terminal=True, color_system=None).print(out)
    return shown.getvalue().splitlines()


def test_a_name_breaks_before_a_figure_and_a_breaking_figure_before_its_interval():
    out = table("At equal FLOPs", "router", "P50 s", "accuracy", breaking=("accuracy",))
    out.add_row("token-router threshold 0.31", "1.234567", "91.2 % (88.0, 94.1)")
    lines = printed(out, 40)
    assert max(map(len, lines)) <= 40
    said = " ".join(" ".join(lines).split())
    assert "1.234567" in said
    assert "91.2 %" in said
    assert not any("91.2 % (88.0, 94.1)" in line and "token-router threshold 0.31" in line for line in lines)
    assert any("token-router threshold 0.31" in line and "91.2 % (88.0, 94.1)" in line for line in printed(out, 120))


def test_words_stand_to_the_left_and_figures_to_the_right():
    out = table("", "score", "set", "AUROC", words=("score", "set"))
    out.add_row("judge", "test", "1")
    out.add_row("prm-correct", "calibration", "0.71")
    row = next(line for line in printed(out, 80) if "judge" in line)
    assert row.startswith(" judge        test ")
    assert row.rstrip().endswith("    1")


def test_a_count_agrees_with_its_noun():
    assert [counted(n, "point") for n in (0, 1, 2)] == ["0 points", "1 point", "2 points"]
    assert [counted(n, "switch", "switches") for n in (1, 2)] == ["1 switch", "2 switches"]
