import pytest

from tests.mutation import MUTANTS, survivors


@pytest.mark.slow
@pytest.mark.alone
def test_every_mutant_is_caught():
    assert len(MUTANTS) >= 20
    assert survivors() == []
