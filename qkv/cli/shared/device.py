"""The option `--device`."""


def choose_device(name: str | None) -> str:
    """Return the device of this name; None: cuda if available, else cpu."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"--device {name!r}: expected cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device available")
    return name
