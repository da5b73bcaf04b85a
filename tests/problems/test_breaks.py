import pytest

from tests.problems.breaks import BREAKS, notice_all


@pytest.mark.slow
@pytest.mark.alone
def test_every_break_is_noticed_by_a_problem():
    assert len(BREAKS) >= 10
    assert [change for change, ids in notice_all().items() if not ids] == []
