"""Ranks as statistics: how often equal machines are ranked apart, and how often different ones are."""

import random

import pytest

from core.comparison.ranking import ANALYSES, Interval, Standing, chances_of_best, rank, student_chance

TRIALS = 200


def share_ranked_apart(repeats, noise, means):
    """The share of simulated comparisons in which any machine is ranked behind another."""
    drawn = random.Random(repeats * 1000 + len(means))  # noqa: S311 - a simulation
    found = [
        rank([[drawn.gauss(mean, each) for _ in range(repeats)] for mean, each in zip(means, noise, strict=True)])
        for _ in range(TRIALS)
    ]
    return sum(any(each.rank != 1 for each in standings) for standings in found) / TRIALS


@pytest.mark.parametrize("machines", [2, *(pytest.param(many, marks=pytest.mark.slow) for many in (3, 4, 8))])
def test_equal_machines_are_seldom_ranked_apart(machines):
    spreads = [(0.005, 0.02, 0.1)[at % 3] for at in range(machines)]
    shares = [share_ranked_apart(repeats, spreads, [0.0] * machines) for repeats in (2, 5, 20)]
    # The mean of 600 comparisons is at most 5 %, and each of 200 within three standard errors of that.
    assert sum(shares) / len(shares) <= 0.05
    assert max(shares) <= 0.05 + 3 * (0.05 * 0.95 / TRIALS) ** 0.5


def race(drawn, means, spread, most):
    """Look at the ranks whenever they may have changed, until a machine is ranked behind another."""
    samples = [[] for _ in means]
    for _ in range(most):
        for values, mean in zip(samples, means, strict=True):
            values.append(drawn.gauss(mean, spread))
        if len(samples[0]) not in ANALYSES:
            continue
        ranks = [each.rank for each in rank(samples, added=True)]
        if any(place and place > 1 for place in ranks):
            return ranks.index(1)
    return None


def test_a_race_between_equals_is_seldom_decided_however_often_it_looks():
    drawn = random.Random(11)  # noqa: S311 - a simulation
    races = 2000
    share = sum(race(drawn, [0.0, 0.0], 0.05, most=6) is not None for _ in range(races)) / races
    assert 0.005 < share <= 0.05


@pytest.mark.slow
def test_a_race_of_forty_looks_or_of_three_machines_is_decided_wrongly_as_seldom():
    drawn = random.Random(12)  # noqa: S311 - a simulation
    for means, most in (([0.0] * 2, 45), ([0.0] * 3, 12)):
        share = sum(race(drawn, means, 0.05, most) is not None for _ in range(2000)) / 2000
        assert share <= 0.05


def test_a_race_finds_the_faster_of_two():
    drawn = random.Random(13)  # noqa: S311 - a simulation
    found = [race(drawn, [0.1, 0.0], 0.05, most=20) for _ in range(60)]
    assert found.count(1) >= 54
    assert found.count(0) == 0


def test_a_test_that_was_made_before_is_not_repeated_with_a_few_more_values():
    values = [[0.0, 0.1, 0.2, 0.1, 0.2], [0.3, 0.5, 0.4, 0.9, 0.8]]
    four = [each[:4] for each in values]
    assert [each.to_best for each in rank(values, added=True)] == [each.to_best for each in rank(four, added=True)]
    two = rank([each[:2] for each in values], added=True)
    assert [(each.rank, each.more_repeats) for each in two] == [(None, 1)] * 2


@pytest.mark.slow
def test_more_repeats_see_more():
    shares = [share_ranked_apart(repeats, [0.02, 0.02], [0.0, 0.04]) for repeats in (2, 5, 20)]
    assert shares == sorted(shares)
    assert shares[1] > 0.6
    assert shares[-1] > 0.99


@pytest.mark.slow
def test_a_difference_far_above_the_noise_is_seen_with_three_repeats():
    assert share_ranked_apart(3, [0.01] * 3, [0.0, 0.5, 1.0]) == 1


@pytest.mark.slow
def test_the_probability_of_the_best_is_as_often_right_as_it_says():
    drawn = random.Random(3)  # noqa: S311 - a simulation
    said, right = [], 0
    for _ in range(150):
        means = [drawn.gauss(0, 0.05) for _ in range(3)]
        chances = chances_of_best([[drawn.gauss(mean, 0.05) for _ in range(4)] for mean in means])
        said.append(max(chances))
        right += chances.index(max(chances)) == means.index(min(means))
    assert abs(right / 150 - sum(said) / 150) < 0.1
    assert chances_of_best([[1.0, 1.01], [9.0, 9.01], [5.0]]) == [
        pytest.approx(1, abs=0.05),
        pytest.approx(0, abs=0.05),
        None,
    ]
    assert chances_of_best([[1.0, 2.0], [3.0]]) == [None, None]


def test_one_repeat_has_no_rank():
    assert rank([[1.0], [9.0]]) == [Standing(more_repeats=2)] * 2
    assert [each.rank for each in rank([[1.0], [9.0, 9.1, 9.2], [1.0, 1.1, 1.2], []])] == [None, 2, 1, None]


def test_the_interval_excludes_nothing_exactly_where_ranks_are_equal():
    drawn = random.Random(7)  # noqa: S311 - a simulation
    for _ in range(100):
        standings = rank([[drawn.gauss(mean, 1) for _ in range(4)] for mean in (0, 1.5, 3)])
        intervals = [each.to_best for each in standings if each.to_best]
        assert len(intervals) == 2
        if all(each.low <= 0 for each in intervals):
            assert {each.rank for each in standings if each.to_best} <= {1, 2}
        for each in standings:
            if each.to_best and each.to_best.low > 0:
                assert each.rank > 1
                assert each.more_repeats is None


def test_it_says_how_many_more_repeats_would_decide():
    close = rank([[0.0, 0.1, 0.2], [0.1, 0.2, 0.3]])[1]
    assert close.rank == 1
    assert close.to_best == Interval(
        pytest.approx(0.1), pytest.approx(-0.145, abs=0.001), pytest.approx(0.345, abs=0.001)
    )
    assert 10 < close.more_repeats < 20
    assert rank([[0.0, 1.0], [0.01, 1.01]])[1].more_repeats == 48, "two values cannot tell that they are equal"
    steady = [0.0, 1.0] * 24
    assert rank([steady, [value + 0.01 for value in steady]])[1].more_repeats is None, "as good as equal"


def test_figures_in_coarse_steps_that_agree_are_not_exact():
    assert [each.rank for each in rank([[0.91, 0.91], [0.90, 0.90]])] == [1, 1]
    assert [each.rank for each in rank([[0.91] * 3, [0.90] * 3])] == [2, 1]
    assert [each.rank for each in rank([[0.9] * 3, [0.9] * 3])] == [1, 1]


# Of scipy.stats.t, with 1.3, 3.7 and 200 degrees of freedom.
@pytest.mark.parametrize(
    ("size", "chances"),
    [
        (0.001, (0.9993331956377506, 0.9992536770590863, 0.9992031123011389)),
        (1, (0.46724238758644926, 0.37814139976045247, 0.3185188479097467)),
        (5, (0.08364237795696712, 0.009163967644893314, 1.2501981277715407e-06)),
        (400, (0.000287349519951437, 1.0288733614287598e-09, 0)),
    ],
)
def test_student_is_that_of_scipy(size, chances):
    found = [student_chance(size, freedom) for freedom in (1.3, 3.7, 200)]
    assert found == [pytest.approx(chance, rel=1e-8, abs=1e-15) for chance in chances]
