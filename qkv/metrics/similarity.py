"""Similarity of two sequences, from 0 to 1; two empty ones have similarity 1.

    jaccard                elements:               |A and B| / |A or B|, as sets
    cosine                 and their counts:       a.b / (|a| |b|), as count vectors
    damerau_levenshtein    and their order:        1 - edits / length of the longer

Only the last one distinguishes a word from its anagram.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def jaccard(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Return elements in both / elements in either."""
    either = set(a) | set(b)
    return len(set(a) & set(b)) / len(either) if either else 1.0


def cosine(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Return the cosine of the count vectors; 0 if only one sequence is empty."""
    if not a or not b:
        return float(len(a) == len(b))
    left, right = Counter(a), Counter(b)
    product = sum(count * right[token] for token, count in left.items())
    # one root of an integer, not two: proportional counts then give exactly 1
    return product / math.sqrt(_squared(left) * _squared(right))


def damerau_levenshtein(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Return 1 - distance / longer length; an edit inserts, deletes, substitutes, or transposes two neighbors.

    Unrestricted: transposed elements may be edited again, so `ca` is two edits from `abc` (transpose, then insert
    between), not three.
    """
    longer = max(len(a), len(b))
    return 1 - _distance(a, b) / longer if longer else 1.0


def _squared(counts: Counter[Hashable]) -> int:
    return sum(count * count for count in counts.values())


def _distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the unrestricted Damerau-Levenshtein distance, by the table of Lowrance and Wagner (1975).

        d[i][j] = min(d[i-1][j] + 1, d[i][j-1] + 1, d[i-1][j-1] + (a[i] != b[j]),
                      d[k-1][m-1] + (i-k-1) + 1 + (j-m-1))

    with k < i the last position of b[j] in a, and m < j the last position of a[i] in b: the two are transposed, after
    deleting the elements between them in a and before inserting those between them in b.
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
