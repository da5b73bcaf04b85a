"""How alike two sequences are, from 0 to 1; two empty ones are alike: 1.

    jaccard                which elements:         |A and B| / |A or B|, as sets
    cosine                 and how many of each:   a.b / (|a| |b|), as count vectors
    damerau_levenshtein    and in which order:     1 - edits / length of the longer

Only the last one tells an anagram from the word.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def jaccard(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Elements in both / elements in either."""
    either = set(a) | set(b)
    return len(set(a) & set(b)) / len(either) if either else 1.0


def cosine(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """The cosine of the angle between the vectors of counts; 0 if just one sequence is empty."""
    if not a or not b:
        return float(len(a) == len(b))
    left, right = Counter(a), Counter(b)
    product = sum(count * right[token] for token, count in left.items())
    # one root of a whole number, not two: proportional counts then give 1 exactly
    return product / math.sqrt(_squared(left) * _squared(right))


def damerau_levenshtein(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """1 - distance / length of the longer; an edit inserts, deletes, replaces, or swaps two neighbors.

    Unrestricted: what was swapped may be edited again, so `ca` is two edits from `abc`
    (swap, then insert between), not three.
    """
    longer = max(len(a), len(b))
    return 1 - _distance(a, b) / longer if longer else 1.0


def _squared(counts: Counter[Hashable]) -> int:
    return sum(count * count for count in counts.values())


def _distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The unrestricted Damerau-Levenshtein distance, by the table of Lowrance and Wagner (1975).

        d[i][j] = min(d[i-1][j] + 1, d[i][j-1] + 1, d[i-1][j-1] + (a[i] != b[j]),
                      d[k-1][m-1] + (i-k-1) + 1 + (j-m-1))

    with k < i the last place of b[j] in a, and m < j the last place of a[i] in b: the two are
    swapped, after deleting what is between them in a and before inserting what is between them in b.
    """
    table = [list(range(len(b) + 1))]
    last_in_a: dict[Hashable, int] = {}
    for i, left in enumerate(a, 1):
        row, last_in_b = [i], 0
        for j, right in enumerate(b, 1):
            k, m = last_in_a.get(right, 0), last_in_b
            row.append(min(table[i - 1][j] + 1, row[j - 1] + 1, table[i - 1][j - 1] + (left != right)))
            if k and m:
                row[j] = min(row[j], table[k - 1][m - 1] + (i - k - 1) + 1 + (j - m - 1))
            if left == right:
                last_in_b = j
        table.append(row)
        last_in_a[left] = i
    return table[-1][-1]
