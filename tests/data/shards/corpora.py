"""A small corpus of numbered documents, and its token shards."""

import json

from qkv.data import ShardOptions, Tokenizer, tokenize_corpus

DOCUMENTS = [f"document {number} " + "abc " * (number % 7 + 1) for number in range(60)]
OPTIONS = ShardOptions(tokenizer="characters", size=40, held_out=0.1, shard_tokens=97)


def write_corpus(folder, files=4):
    """Write the documents as .jsonl files."""
    folder.mkdir()
    for number in range(files):
        lines = [json.dumps({"text": text}) + "\n" for text in DOCUMENTS[number::files]]
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return folder


def corpus_order(files=4):
    """Return the documents in the order of the files."""
    return [text for number in range(files) for text in DOCUMENTS[number::files]]


def make_shards(tmp_path, options=OPTIONS):
    """Return the folder of the shards of the corpus."""
    tokenize_corpus(str(write_corpus(tmp_path / "corpus")), tmp_path / "shards", options)
    return tmp_path / "shards"


def flat(tokenizer, texts):
    """Return the tokens of documents, each between start and end."""
    return [number for text in texts for number in (1, *tokenizer.encode(text), 2)]


def load_tokenizer(folder):
    """Return the tokenizer of a folder of shards."""
    return Tokenizer.load(folder / "tokenizer.json")
