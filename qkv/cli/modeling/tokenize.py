"""`qkv tokenize`: train a tokenizer, or see what one does."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.console import Json, console, print_json

tokenize = typer.Typer(help="Train a tokenizer on a text, or see what one does.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A tokenizer.json.")]


@tokenize.command("train")
def train(
    source: Annotated[str, typer.Argument(help="python, wikitext, a folder of .txt files, or one file.")] = "python",
    kind: Annotated[str, typer.Option(help="bytes, wordpiece or characters.")] = "bytes",
    size: Annotated[int, typer.Option(help="Tokens, at most.")] = 8000,
    out: Annotated[Path, typer.Option(help="Where it is written, as a tokenizer.json.")] = Path("tokenizer.json"),
    json: Json = False,
) -> None:
    """Train a tokenizer on the training part of a text: `qkv tokenize train book.txt --kind bytes --size 8000`."""
    from qkv.data import Tokenizer, read_text

    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.absolute().parent}")
    made = Tokenizer.train(read_text(source)["train"], kind, size)
    made.save(out)
    record = {"file": str(out), "kind": kind, "size": len(made), "special": made.special, "sha256": made.digest}
    if json:
        print_json(record)
    else:
        console().print(f"{out}: {len(made):,} tokens, of which {len(made.special)} are special", soft_wrap=True)


@tokenize.command("encode")
def encode(
    tokenizer: File,
    text: Annotated[str, typer.Argument(help="What to encode.")],
    special: Annotated[bool, typer.Option("--special", help="Read names such as [MASK] as those tokens.")] = False,
    json: Json = False,
) -> None:
    """The tokens of a text, and their ids."""
    from qkv.data import Tokenizer

    found = Tokenizer.load(tokenizer)
    ids = found.encode(text, special=special)
    tokens = [found.token(number) for number in ids]
    if json:
        print_json({"text": text, "ids": ids, "tokens": tokens, "decoded": found.decode(ids)})
        return
    console().print(" ".join(tokens), markup=False, soft_wrap=True)
    console().print(" ".join(map(str, ids)), markup=False, soft_wrap=True)


@tokenize.command("decode")
def decode(
    tokenizer: File, ids: Annotated[list[int], typer.Argument(help="Numbers of tokens.")], json: Json = False
) -> None:
    """The text of these ids."""
    from qkv.data import Tokenizer

    text = Tokenizer.load(tokenizer).decode(ids)
    if json:
        print_json({"ids": ids, "text": text})
    else:
        console().print(text, markup=False, soft_wrap=True)
