import pytest

from tests.mutation import ATTENTION, MUTANTS, ROOT, Mutant, broken_text, files_of, find_killers, run_module


@pytest.mark.slow
@pytest.mark.alone
def test_every_mutant_is_caught():
    done = run_module(ROOT, "tests.mutation")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(MUTANTS)} of {len(MUTANTS)} mutants caught" in done.stdout.decode()
    assert len(MUTANTS) >= 20


def test_every_mutant_breaks_one_place():
    for mutant in MUTANTS:
        path = ROOT / "qkv" / mutant.file
        assert broken_text(mutant, path) != path.read_text(), mutant


def test_the_nearest_tests_come_first_and_none_is_lost():
    files = files_of(Mutant("attention/elu.py", "a", "b"))
    assert files[:3] == [f"tests/attention/test_{name}.py" for name in ("elu", "new_kind", "additive")]
    assert set(ATTENTION) - set(files) == {"tests/positions", "tests/layers", "tests/contract"}
    inside = {file.rsplit("/", 1)[0] for file in set(files) - set(ATTENTION)}
    assert inside == {"tests/positions", "tests/layers", "tests/contract"}
    assert files_of(Mutant("x.py", "a", "b", ("tests/test_x.py::test_y",))) == ["tests/test_x.py::test_y"]


def test_a_process_that_has_imported_the_library_forks_no_mutants():
    import qkv  # noqa: F401, PLC0415 - this is the point

    with pytest.raises(RuntimeError, match="no fork would see its mutant"):
        find_killers(MUTANTS)
