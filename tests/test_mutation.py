import pytest

from tests.mutation import MUTANTS, ROOT, run_module


@pytest.mark.slow
@pytest.mark.alone
def test_every_mutant_is_caught():
    done = run_module(ROOT, "tests.mutation")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(MUTANTS)} of {len(MUTANTS)} mutants caught" in done.stdout.decode()
    assert len(MUTANTS) >= 20
