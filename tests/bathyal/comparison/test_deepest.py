"""The search for the deepest network: few attempts, and the result is one that did."""

import pytest

from bathyal.comparison.deepest import search_deepest


def searched(share, start, within=0.02, others=0):
    tried = []

    def attempt(number):
        tried.append(number)
        return share(number)

    return search_deepest(attempt, start, within, others=others), tried


@pytest.mark.parametrize("start", [1, 40, 970, 1000, 5000, 100_000])
def test_a_proportion_is_found_in_a_few_attempts(start):
    found, tried = searched(lambda n: (n + 44) / 1044, start, others=44)
    assert 979 <= found <= 1000
    assert len(tried) <= 4


@pytest.mark.parametrize("start", [1, 40, 120, 128, 700])
def test_without_shares_the_bracket_halves(start):
    found, tried = searched(lambda n: 0.0 if n <= 123 else None, start, within=0.02)
    assert 120 <= found <= 123
    assert len(tried) <= 40
    assert len(tried) == len(set(tried)), "nothing is tried twice"


def test_nothing_that_does_is_zero():
    found, tried = searched(lambda n: None, 100)
    assert found == 0
    assert tried[-1] == 1


@pytest.mark.parametrize("share", [lambda n: n**3 / 1e6, lambda n: 0.5 + n / 200, lambda n: 2.0 if n > 100 else 0.01])
def test_other_growths_end_too(share):
    found, tried = searched(share, 10)
    assert 90 <= found <= 100
    assert len(tried) < 30
