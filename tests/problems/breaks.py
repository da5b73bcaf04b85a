"""Break the library in ten places and see that the worked problems notice: `python -m tests.problems.breaks`.

Every quick problem is solved on a copy of the package with one text replaced. A break is noticed by the problems that
are not ok any more, or that cannot be computed at all. The unbroken copy comes first: there nothing may be noticed.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from qkv.problems import problems
from tests.mutation import Mutant, broken_copy, run_module

BREAKS = (
    Mutant("attention/softmax.py", "key_dim**-0.5 if self.scale", "key_dim**-1.0 if self.scale"),
    Mutant("attention/taylor.py", "x * r**-0.5", "x * r**-1.0"),
    Mutant("attention/linear.py", "return x\n", "return x.abs()\n"),
    Mutant("positions/sinusoidal.py", "(angle.sin(), angle.cos())", "(angle.cos(), angle.sin())"),
    Mutant("layers/dense.py", "return self.linear(x)", "return self.linear(x.abs())"),
    Mutant("layers/recurrent.py", "self.input(x) + self.state(h)", "self.input(x) + self.state(h).abs()"),
    Mutant("models/convolutional.py", '"stride": 2}', '"stride": 1}'),
    Mutant("cost/aten.py", "(q.shape[-1] + v.shape[-1])", "q.shape[-1]"),
    Mutant("decode/beam.py", ".log_probability + own, parent", ".log_probability, parent"),
    Mutant("metrics/similarity.py", "min(row[j], table[k - 1][m - 1]", "min(row[j], 1 + table[k - 1][m - 1]"),
    Mutant("metrics/ranking.py", "right / rank for", "right / (rank + 1) for"),
    Mutant("metrics/separability.py", "sign = 2.0 * labels.double() - 1", "sign = 1 - 0.0 * labels.double()"),
)


def noticed(change: Mutant | None) -> list[str]:
    """Ids of the quick problems that are not ok on a copy with this change."""
    with broken_copy(change) as copy:
        done = run_module(copy, "tests.problems.breaks", "--solve")
        if done.returncode:
            raise RuntimeError(f"the problems did not run on {change}: {done.stderr.decode()[-2000:]}")
        return json.loads(done.stdout)


def notice_all() -> dict[Mutant, list[str]]:
    """Break -> who noticed."""
    loud = noticed(None)
    if loud:
        raise RuntimeError(f"on the unbroken copy {', '.join(loud)} are not ok; mend that first")
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BREAKS, pool.map(noticed, BREAKS), strict=True))


def _is_ok(name: str) -> bool:
    try:
        return problems[name].solve().ok is not False
    except Exception:  # noqa: BLE001 - an answer that cannot be computed is a break noticed
        return False


if __name__ == "__main__":
    if sys.argv[1:] == ["--solve"]:
        sys.stdout.write(json.dumps([name for name in problems if not problems[name].slow and not _is_ok(name)]))
        sys.exit()
    found = notice_all()
    for change, ids in found.items():
        sys.stdout.write(f"{change.file}: {change.before!r} -> {change.after!r}: {', '.join(ids) or 'nobody'}\n")
    sys.stdout.write(f"{sum(map(bool, found.values()))} of {len(BREAKS)} breaks noticed\n")
    sys.exit(not all(found.values()))
