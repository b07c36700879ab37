"""The command: what may be given on its line, how it stops, and what it says of wrong input."""

from __future__ import annotations

import signal

import pytest
import yaml
from small_runs import PAIR, results, started, tokens, traces, wait_for_answers

from baton.bench.command import run_compare


def test_another_pair_and_fewer_timed_answers_may_be_given_on_the_command_line(recipe, tmp_path, monkeypatch):
    (tmp_path / "pairs").mkdir()
    other = {**PAIR, "target": {"model": PAIR["target"], "speculative": "ngram"}}
    (tmp_path / "pairs" / "ngram.yaml").write_text(yaml.safe_dump(other))
    monkeypatch.chdir(tmp_path / "pairs")
    assert run_compare(recipe(), out=tmp_path / "plain") == 0
    assert run_compare(recipe(), out=tmp_path / "ngram", pair="ngram.yaml", timed=1) == 0
    found = results(tmp_path / "ngram")
    assert [arm["speculation"]["target"]["method"] for arm in found["arms"]] == ["ngram", "ngram"]
    timed = [t for t in traces(tmp_path / "ngram") if t.extra["pass"] == "latency"]
    assert len({t.question for t in timed}) < len(
        {t.question for t in traces(tmp_path / "plain") if t.extra["pass"] == "latency"}
    )
    quality = {key: ids for key, ids in tokens(tmp_path / "plain").items() if key[0] == "quality"}
    assert quality == {key: ids for key, ids in tokens(tmp_path / "ngram").items() if key[0] == "quality"}


def test_ctrl_c_stops_with_130_says_how_to_go_on_and_leaves_whole_lines(recipe, tmp_path):
    path = recipe(concurrency=2, samples=4)
    with started(path, tmp_path / "run") as process:
        wait_for_answers(tmp_path / "run", 3, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "the same command goes on from there" in said.splitlines()[-1]
    assert len(traces(tmp_path / "run")) >= 3


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"routers": ["relaygn"]}, ["recipe.yaml: routers: ", "'relaygn' is unknown", "did you mean 'relaygen'"]),
        ({"routers": [{"router": "random", "knobs": {"shares": 1}}]}, ["random.shares", "did you mean 'share'"]),
        ({"routers": [{"router": "relaygen", "knobs": {"profile": "no.json"}}]}, ["no.json", "baton calibrate cues"]),
        ({"task": {"name": "sums", "path": "empty.jsonl"}}, ["empty.jsonl has no questions"]),
        (
            {"pair": {**PAIR, "target": "models/none/here"}},
            ["recipe.yaml: pair.target.model: ", "no such folder"],
        ),
        (
            {"routers": [{"router": "target", "speculative": {"target": "mtp"}}]},
            ["recipe.yaml: target: speculative.target.method: engine 'transformers' does not do 'mtp'"],
        ),
        (
            {"routers": [{"router": "target", "speculative": {"judge": "ngram"}}]},
            ["recipe.yaml: routers[0].speculative.judge: unknown field", "use one of target, draft"],
        ),
        ({"routers": ["rsd"], "pair": {**PAIR, "target": "models/none"}}, ["'rsd' needs the scorer 'prm'"]),
        ({"rooters": []}, ["recipe.yaml: rooters: unknown field", "did you mean 'routers'"]),
        (
            {
                "routers": ["draft", {"router": "random", "share_of": "draft"}],
                "task": {"name": "sums", "path": "test.jsonl"},
            },
            ["calibration.split: its question 'test0' is test question 'test0'"],
        ),
    ],
)
def test_wrong_input_is_answered_in_one_line_with_exit_code_2(recipe, tmp_path, capsys, changes, parts):
    (tmp_path / "empty.jsonl").write_text("")
    assert run_compare(recipe(**changes), out=tmp_path / "run") == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(part in said for part in parts), said
    assert not (tmp_path / "run").exists()
