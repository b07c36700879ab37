import random
import re
from itertools import islice

import pytest

from baton.nano import problems
from baton.nano.families import FAMILIES, HELD_OUT, TRAINED
from baton.nano.language import EASY_CUES, HARD_CUES, judge_same, judge_score, same_prompt, score_prompt, work

SAMPLE = {"train": 12_000, "dev": 3_000, "calibration": 4_000, "test": 4_000, "ood": 2_000}


TEST_BEGINS = [
    "Paula buys 5 books at 21 dollars each. A gift card pays 32 dollars. Compute the bill after the gift card.",
    "Mia orders 19 rugs for 17 dollars each. Shipping costs 215 dollars. Compute the bill with shipping.",
]


def normalised(question: str) -> str:
    return re.sub(r"\W+", " ", question.lower()).strip()


@pytest.fixture(scope="module")
def sampled() -> dict[str, list[problems.Problem]]:
    return {split: problems.load(split, n) for split, n in SAMPLE.items()}


def test_no_question_is_in_two_splits_or_twice_in_one(sampled):
    texts = [normalised(p.question) for split in sampled.values() for p in split]
    assert len(set(texts)) == sum(SAMPLE.values())


def test_no_chain_of_operations_is_in_two_splits(sampled):
    chains = {
        split: {(p.family, tuple((o.left, o.symbol, o.right) for o in p.operations)) for p in listed}
        for split, listed in sampled.items()
    }
    names = list(chains)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            assert not chains[a] & chains[b], f"{a} and {b} share problems"


def test_a_split_is_the_same_on_every_call_and_machine():
    first = problems.load("test", 2)
    assert problems.load("test", 50)[:2] == first
    assert [p.id for p in first] == ["test-00000", "test-00001"]
    assert [p.question for p in first] == TEST_BEGINS
    assert problems.load("test", 2, seed=1) != first


def test_the_named_sizes_are_there():
    assert len(problems.load("test")) == 2_000
    assert len(problems.load("calibration")) == 1_000
    assert len(problems.load("ood")) == 500


def test_every_prefix_is_balanced_over_levels():
    for n in (5, 30, 200):
        counts = [sum(p.level == level for p in problems.load("test", n)) for level in problems.LEVELS]
        assert max(counts) == min(counts)


def test_the_held_out_family_appears_out_of_distribution_only(sampled):
    assert len(TRAINED) >= 6
    assert {p.family for p in sampled["train"]} == set(TRAINED)
    assert {p.family for p in sampled["ood"]} == set(FAMILIES)
    assert HELD_OUT not in {p.family for p in sampled["test"]}


def test_out_of_distribution_chains_are_longer_and_numbers_larger(sampled):
    longest = max(len(p.operations) for p in sampled["train"])
    assert min(len(p.operations) for p in sampled["ood"]) > longest
    largest = [max(float(o.result) for p in sampled[split] for o in p.operations) for split in ("train", "ood")]
    assert largest[1] > largest[0]


def test_operations_are_right_and_end_in_the_answer(sampled):
    for problem in sampled["train"][:3_000] + sampled["ood"][:500]:
        for o in problem.operations:
            a, b = float(o.left), float(o.right)
            result = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[o.symbol]
            assert float(o.result) == result > 0
            assert re.fullmatch(r"\d+(\.5)?", o.result)
        assert problem.answer == problem.operations[-1].result


@pytest.mark.parametrize(("split", "limit"), [("trial", None), ("test", -1)])
def test_wrong_arguments_are_named(split, limit):
    with pytest.raises(ValueError, match=r"split: 'trial'|limit: -1"):
        problems.load(split, limit)


def test_worked_solutions_end_right_and_keep_to_the_format(sampled):
    rng = random.Random(0)
    for problem in sampled["train"][:2_000]:
        worked = work(problem, rng)
        thinking, _, answer = worked.text.partition("\n</think>\n\n")
        assert answer.endswith(".")
        assert re.findall(r"\\boxed\{([^{}]+)\}", answer) == [problem.answer]
        for step in thinking.split("\n\n"):
            assert re.search(r"[.?!]$", step)
            assert 1 <= len(re.findall(r"[.?!](?= |$)", step)) <= 4


def test_slips_are_repaired_and_not_learned(sampled):
    rng = random.Random(1)
    slips = 0
    for problem in sampled["train"][:2_000]:
        worked = work(problem, rng)
        hidden = [piece.text for piece in worked.pieces if not piece.learned]
        if hidden:
            slips += 1
            (wrong,) = hidden
            after = worked.text[worked.text.index(f"= {wrong}" if f"= {wrong}" in worked.text else wrong) :]
            repaired = [o for o in problem.operations if f"{o.expression} = {o.result}" in after or o.result in after]
            assert "Wait," in after
            assert repaired
    assert 0.10 <= slips / 2_000 <= 0.20


def test_at_least_twenty_cue_stems_occur(sampled):
    rng = random.Random(2)
    text = " ".join(work(problem, rng).text for problem in sampled["train"][:1_500])
    stems = {cue.rstrip(",").capitalize() for cue in (*EASY_CUES, *HARD_CUES)}
    found = {stem for stem in stems if re.search(rf"(?:^|[.?!]\s+){stem}\b", text)}
    assert len(found) >= 20


def test_judging_prompts_are_the_public_ones(sampled):
    rng = random.Random(3)
    verdicts = set()
    for problem in sampled["train"][:500]:
        score, same = judge_score(problem, rng), judge_same(problem, rng)
        head, _, step = score.prompt.partition("\n\nLast step: ")
        question, *steps = head.removeprefix("Question: ").split("\n\n")
        step = step.removesuffix("\n\nScore the last step from 0 to 9.")
        assert question == problem.question
        assert score.prompt == score_prompt(question, steps[1:], step)
        head, _, rest = same.prompt.partition("\n\nStep A: ")
        a, _, b = rest.removesuffix("\n\nDo the two steps say the same?").partition("\n\nStep B: ")
        assert same.prompt == same_prompt(question, head.split("\n\n")[2:], a, b)
        verdicts |= {score.verdict, same.verdict}
    assert verdicts == {"0", "1", "3", "5", "9", "same", "different"}


def test_further_turns_are_for_training_only(sampled):
    problem = next(islice((p for p in sampled["train"] if p.level == 5), 1))
    assert judge_score(problem, random.Random(0)).further == ()
    assert len(judge_score(problem, random.Random(0), turns=4).further) == 3
