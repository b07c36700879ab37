import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.gate import GATES, Clip, Constant, Gate, Logistic, Sigmoidal, Threshold, make_gate

ALL: list[Gate] = [Constant(0.3), Threshold(0.7), Clip(), Sigmoidal(), Logistic(10.0, 0.7)]
SCORES = st.floats(allow_nan=False)


@pytest.mark.parametrize(
    ("gate", "score", "probability"),
    [
        (Constant(0.3), -5.0, 0.3),
        (Threshold(0.7), 0.7, 1.0),
        (Threshold(0.7), math.nextafter(0.7, 0.0), 0.0),
        (Clip(), 0.25, 0.25),
        (Clip(), 1.5, 1.0),
        (Clip(), -0.5, 0.0),
        (Sigmoidal(), 1.0, 0.5),
        (Sigmoidal(), 3.0, 0.75),
        (Sigmoidal(), 0.25, 0.2),
        (Sigmoidal(), -1.0, 0.0),
        (Logistic(10.0, 0.7), 0.7, 0.5),
        (Logistic(2.0, 0.0), math.log(3.0) / 2.0, 0.75),
        (Logistic(2.0, 0.0), -math.log(3.0) / 2.0, 0.25),
    ],
)
def test_probability_follows_its_formula(gate, score, probability):
    assert gate.accept_probability(score) == pytest.approx(probability, abs=1e-12)


@pytest.mark.parametrize("gate", ALL, ids=lambda g: g.name)
@given(score=SCORES)
def test_probability_stays_a_probability_for_any_score(gate, score):
    assert 0.0 <= gate.accept_probability(score) <= 1.0


@pytest.mark.parametrize("gate", ALL, ids=lambda g: g.name)
@given(a=SCORES, b=SCORES)
def test_a_better_score_is_never_less_likely_to_pass(gate, a, b):
    assert gate.accept_probability(min(a, b)) <= gate.accept_probability(max(a, b))


@pytest.mark.parametrize("gate", [Sigmoidal(), Logistic(1e300, 0.5), Clip(), Threshold(0.0)], ids=lambda g: g.name)
def test_extreme_scores_reach_the_ends_without_overflow(gate):
    for low, high in [(-1e308, 1e308), (-math.inf, math.inf)]:
        assert gate.accept_probability(low) == 0.0
        assert gate.accept_probability(high) == 1.0


@given(u=st.floats(0.0, 1.0, exclude_max=True))
def test_certain_outcomes_do_not_depend_on_the_draw(u):
    assert Constant(1.0).accepts(0.0, u)
    assert not Constant(0.0).accepts(0.0, u)
    assert Threshold(0.5).accepts(0.5, u)
    assert not Threshold(0.5).accepts(0.4, u)


def test_acceptance_rate_is_the_probability():
    n = 1000
    assert sum(Clip().accepts(0.25, i / n) for i in range(n)) == 250


def test_only_gates_that_need_no_draw_are_deterministic():
    assert [gate.name for gate in ALL if gate.deterministic] == ["binary"]
    assert Constant(0.0).deterministic
    assert Constant(1.0).deterministic


@pytest.mark.parametrize("gate", ALL, ids=lambda g: g.name)
def test_a_score_that_is_not_a_number_is_an_error_and_no_rejection(gate):
    with pytest.raises(ValueError, match=f"score: nan .* {gate.name}"):
        gate.accept_probability(math.nan)
    with pytest.raises(ValueError, match="score: nan"):
        gate.accepts(math.nan, 0.5)


@pytest.mark.parametrize("u", [-0.1, 1.0, math.nan])
def test_a_draw_outside_the_unit_interval_is_an_error(u):
    with pytest.raises(ValueError, match=r"u: .* outside \[0, 1\)"):
        Clip().accepts(0.5, u)


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("constant", {"p": 1.2}, r"constant\.p: 1\.2"),
        ("constant", {"p": math.nan}, r"constant\.p: nan"),
        ("binary", {"threshold": math.nan}, r"binary\.threshold: nan"),
        ("logistic", {"alpha": 0.0, "delta": 0.5}, r"logistic\.alpha: 0\.0"),
        ("logistic", {"alpha": math.inf, "delta": 0.5}, r"logistic\.alpha: inf"),
        ("logistic", {"alpha": 1.0, "delta": math.nan}, r"logistic\.delta: nan"),
        ("logistic", {"alpha": 1.0}, r"gate\.logistic: .*'alpha', 'delta'"),
        ("clipping", {"p": 0.5}, r"gate\.clipping: \['p'\]"),
        ("sigmoid", {}, r"gate: 'sigmoid' is unknown; use one of constant, binary, clipping, sigmoidal, logistic"),
    ],
)
def test_bad_configuration_names_the_field_the_value_and_the_remedy(name, knobs, message):
    with pytest.raises(ValueError, match=message):
        make_gate(name, **knobs)


def test_every_gate_is_made_from_its_name_and_knobs():
    knobs = {"constant": {"p": 0.3}, "binary": {"threshold": 0.7}, "logistic": {"alpha": 10.0, "delta": 0.7}}
    assert [make_gate(name, **knobs.get(name, {})) for name in GATES] == ALL
