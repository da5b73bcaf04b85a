"""`qkv tokenize`: train a tokenizer, encode and decode, write token shards."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.signals import ExitOnSignal

tokenize = typer.Typer(
    help="Train a tokenizer on a text; encode and decode with it; tokenize a corpus.", no_args_is_help=True
)
File = Annotated[Path, typer.Argument(help="Tokenizer file, tokenizer.json.")]


@tokenize.command("train")
def train(
    source: Annotated[
        str, typer.Argument(help="Corpus: python, wikitext, a folder of .txt files, or one file.")
    ] = "python",
    kind: Annotated[str, typer.Option(help="Kind of tokens: bytes, wordpiece or characters.")] = "bytes",
    size: Annotated[int, typer.Option(help="Vocabulary size at most, in tokens.")] = 8000,
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("tokenizer.json"),
    json: Json = False,
) -> None:
    """Train a tokenizer on the training split of a corpus: `qkv tokenize train book.txt --kind bytes --size 8000`."""
    from qkv.data import Tokenizer, read_corpus

    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.absolute().parent}")
    trained = Tokenizer.train(read_corpus(source)["train"], kind, size)
    trained.save(out)
    record = {
        "file": str(out),
        "kind": kind,
        "size": len(trained),
        "special": trained.special,
        "sha256": trained.digest,
    }
    if json:
        print_json(record)
    else:
        console().print(f"{out}: {size:,} tokens, of which {len(trained.special)} are special", soft_wrap=True)


@tokenize.command("corpus")
def corpus(
    source: Annotated[str, typer.Argument(help="Folder of .txt, .jsonl, .parquet or .arrow files, or one file.")],
    out: Annotated[Path, typer.Option(help="Folder for the shards, new or begun by the same command.")],
    tokenizer: Annotated[
        str, typer.Option(help="bytes, wordpiece or characters, trained on the corpus; or a tokenizer.json.")
    ] = "bytes",
    size: Annotated[int, typer.Option(help="Vocabulary size at most, if a tokenizer is trained.")] = 8000,
    sample: Annotated[int, typer.Option(help="Characters to train the tokenizer on.")] = 4_000_000,
    column: Annotated[str, typer.Option(help="Column of the texts in files with columns.")] = "text",
    held_out: Annotated[float, typer.Option(help="Share of the documents in each of valid and test.")] = 0.005,
    shard_tokens: Annotated[int, typer.Option(help="Most tokens of a shard.")] = 2**25,
    workers: Annotated[int, typer.Option(help="Processes that tokenize.")] = 1,
    json: Json = False,
) -> None:
    """Tokenize a corpus into a folder of shards to train on; the same command again continues where it was stopped."""
    from qkv.cli.shared.progress import pieces_progress
    from qkv.data import ShardOptions, tokenize_corpus

    options = ShardOptions(tokenizer, size, sample, column, held_out, shard_tokens)
    sentence = f"the finished shards are kept; the same command again continues {out}"
    with ExitOnSignal(sentence), pieces_progress() as report:
        manifest = tokenize_corpus(source, out, options, workers, report)
    record = {"folder": str(out), "tokens": manifest.tokens, "documents": manifest.documents}
    record |= {"shards": len(manifest.train), "tokenizer": manifest.tokenizer}
    if json:
        print_json(record)
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in manifest.documents.items())
    text = f"{out}: {manifest.tokens:,} tokens in {len(manifest.train):,} shards; documents: {counts}"
    console().print(text, markup=False, soft_wrap=True)


@tokenize.command("encode")
def encode(
    tokenizer: File,
    text: Annotated[str, typer.Argument(help="Text to encode.")],
    special: Annotated[bool, typer.Option("--special", help="Parse names such as [MASK] as special tokens.")] = False,
    json: Json = False,
) -> None:
    """Print the tokens of a text and their ids."""
    from qkv.data import Tokenizer

    loaded = Tokenizer.load(tokenizer)
    ids = loaded.encode(text, special=special)
    tokens = [loaded.id_to_token(one) for one in ids]
    if json:
        print_json({"text": text, "ids": ids, "tokens": tokens, "decoded": loaded.decode(ids)})
        return
    console().print(" ".join(tokens), markup=False, soft_wrap=True)
    console().print(" ".join(map(str, ids)), markup=False, soft_wrap=True)


@tokenize.command("decode")
def decode(tokenizer: File, ids: Annotated[list[int], typer.Argument(help="Token ids.")], json: Json = False) -> None:
    """Print the text of token ids."""
    from qkv.data import Tokenizer

    text = Tokenizer.load(tokenizer).decode(ids)
    if json:
        print_json({"ids": ids, "text": text})
    else:
        console().print(text, markup=False, soft_wrap=True)
