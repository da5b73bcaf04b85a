"""Settings and data with which a training takes a moment."""

TINY = {"vocabulary": 16, "length": 8, "pairs": 2, "examples": 32}
CHANGES = {
    "model": {"dim": 8, "layers": 2},
    "train": {"steps": 3, "batch_size": 4, "warmup": 1, "validate_every": 2},
    "data": TINY,
}


def write_pairs(folder):
    """45 words of two to six letters to train on and 15 to test with, to be reversed: the options that name them."""
    letters = ["".join("abcdef"[(7 * n + 3 * k * k + n // (k + 1)) % 6] for k in range(2 + n % 5)) for n in range(300)]
    words = list(dict.fromkeys(letters))[:60]
    lines = [f"{word}\t{' '.join(word[::-1].upper())}\n" for word in words]
    (folder / "train.tsv").write_text("".join(lines[15:]))
    (folder / "test.tsv").write_text("".join(lines[:15]))
    return {"train_file": str(folder / "train.tsv"), "test_file": str(folder / "test.tsv")}
