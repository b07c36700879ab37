"""The parts of training that need no training: batches, weights of the loss, and which launch is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from label_sets import VOCABULARY, labels, write

from baton.scorers.policy import FEATURES, PolicyNet
from baton.scorers.resident import ResidentHead
from baton.training.config import StepTraining, Training, check_launch, divide
from baton.training.examples import Example, Rules, Step, read_examples
from baton.training.policy import Answer, PolicyTrainer, PolicyTraining
from baton.training.resident import HeadTrainer, Seen
from baton.training.tokens import SegmenterTraining, TokenTraining
from baton.training.trainer import NO_LABEL, LengthGrouped, class_weights, padded, step_labels
from baton.training.verifier import VerifierTraining


def test_batches_hold_examples_of_like_length_and_each_example_once():
    lengths = [(7 * n) % 97 + 3 for n in range(1000)]
    sampler = LengthGrouped(lengths, batch=10, seed=0)
    order = list(sampler)
    assert sorted(order) == list(range(1000))
    widths = [max(lengths[n] for n in order[at : at + 10]) for at in range(0, 1000, 10)]
    assert sum(widths) * 10 < 1.1 * sum(lengths)


def test_batches_depend_on_seed_and_epoch_alone_and_are_full():
    lengths = [5 + n % 31 for n in range(203)]
    first, second = LengthGrouped(lengths, 8, seed=1), LengthGrouped(lengths, 8, seed=1)
    assert list(first) == list(second)
    assert len(list(first)) == len(first) == 200
    again = list(first)
    first.set_epoch(1)
    assert list(first) != again
    assert list(LengthGrouped(lengths, 8, seed=2)) != again


def test_balanced_weights_give_good_and_bad_steps_the_same_mass():
    values = (1.0, 1.0, 0.75, 0.25, 1.0)
    examples = [Example("q", (1,), (Step(1, value, None, 1),)) for value in values]
    good, bad = class_weights(examples)
    assert good * sum(values) == pytest.approx(bad * sum(1 - v for v in values)) == pytest.approx(len(values) / 2)
    with pytest.raises(ValueError, match="all labels are 1"):
        class_weights(examples[:1])


def test_labels_are_padded_to_what_the_loss_leaves_out(tmp_path: Path):
    examples = read_examples(write(tmp_path, labels(8)), VOCABULARY, Rules("keep", 2048)).examples
    found = step_labels(examples)
    assert found.dtype == torch.float32
    assert int((found != NO_LABEL).sum()) == sum(len(e.steps) for e in examples)
    assert padded([(1, 2, 3), (4,)], 0).tolist() == [[1, 2, 3], [4, 0, 0]]


def test_what_weights_are_chosen_by_is_the_loss_that_is_minimised(tmp_path: Path):
    torch.manual_seed(0)
    training = Training(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    values, harms, prices = (0.25, 1.0, 0.5), (0.75, 0.0, 0.4), (0.3, 0.1, 0.2)
    steps = tuple(Step(n, value, None, n) for n, value in enumerate(values, 1))
    head, seen = ResidentHead(4, 3), Seen("q", (1, 2, 3), steps, torch.randn(3, 4))
    policy = PolicyNet(3)
    answer = Answer("q", (1, 2, 3), steps, (), torch.randn(3, len(FEATURES)), harms, prices)
    heads = HeadTrainer(model=head, args=training, batch=1, weights=(0.4, 1.7), train_dataset=[seen])
    policies = PolicyTrainer(model=policy, args=training, batch=1, train_dataset=[answer], price=0.5, temperature=0.1)
    for parameter in (*head.parameters(), *policy.parameters()):
        torch.nn.init.normal_(parameter)
    for trainer, example in ((heads, seen), (policies, answer)):
        batch = trainer.collate([example])
        loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=3)
        scores = trainer.step_logits(trainer.model, batch).double().sigmoid().tolist()
        assert trainer.objective([example], scores) == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("processes", "most", "micro", "accumulated"), [(1, 32, 24, 1), (2, 32, 12, 1), (2, 8, 6, 2), (4, 5, 3, 2)]
)
def test_a_batch_is_divided_exactly(tmp_path: Path, processes: int, most: int, micro: int, accumulated: int):
    training = Training(output_dir=str(tmp_path), per_device_train_batch_size=most, use_cpu=True)
    divide(training, 24, processes)
    assert (training.per_device_train_batch_size, training.gradient_accumulation_steps) == (micro, accumulated)
    with pytest.raises(ValueError, match="batch: 24 cannot be divided among 5 processes"):
        divide(training, 24, 5)


def test_a_launch_that_is_not_the_one_asked_for_is_refused(tmp_path: Path):
    training = Training(output_dir=str(tmp_path), use_cpu=True)
    check_launch(training, StepTraining(data="labels"))
    with pytest.raises(ValueError, match="processes: 2 were asked for, 1 were launched and 1 train together"):
        check_launch(training, StepTraining(data="labels", processes=2))
    with pytest.raises(ValueError, match="strategy: zero3 was asked for and single runs"):
        check_launch(training, StepTraining(data="labels", strategy="zero3"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": 0}, "batch: 0 is out of range; give a number of at least 1"),
        ({"held_out": 1.5}, "held_out: 1.5 is out of range; give a number from 0 to 1"),
        ({"label": "harm"}, "label: 'harm' is unknown; use one of correct, keep"),
        ({"data": ""}, "data: missing"),
        ({"kind": "resident", "export_dtype": "bfloat16"}, "export_dtype: 'bfloat16' cannot be had"),
    ],
)
def test_fields_are_checked_by_name(fields: dict, message: str):
    with pytest.raises(ValueError) as error:
        StepTraining(**{"data": "labels", **fields})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "given", "message"),
    [
        (VerifierTraining, {"label": "correct"}, "label: 'correct' cannot be had: it does nothing in this training"),
        (VerifierTraining, {"kind": "prm"}, "kind: 'prm' is trained by train_prm.py; leave kind out"),
        (TokenTraining, {"first_error_below": 0.5}, "first_error_below: 0.5 cannot be had"),
        (SegmenterTraining, {"same_at": 0.9}, "same_at: 0.9 cannot be had"),
        (PolicyTraining, {"balance": True}, "balance: True cannot be had"),
    ],
)
def test_a_field_that_a_kind_of_training_does_not_read_is_refused(fields: type, given: dict, message: str):
    with pytest.raises(ValueError) as error:
        fields(**{"data": "labels", **given})
    assert message in str(error.value)


def test_a_number_that_never_changed_in_training_keeps_its_scale():
    head = ResidentHead(3, 2)
    head.standardise(torch.tensor([[0.1, 1.0, 5.0], [0.1, 3.0, 5.0]]))
    assert head.standard(torch.tensor([1.1, 4.0, 5.0])).tolist() == pytest.approx([1.0, 2.0, 0.0])
