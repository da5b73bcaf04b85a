"""`qkv tokenize`: train a tokenizer, encode and decode."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.console import Json, console, print_json

tokenize = typer.Typer(help="Train a tokenizer on a text; encode and decode with it.", no_args_is_help=True)
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
