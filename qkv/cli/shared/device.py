"""The option `--device`."""


def choose_device(name: str | None) -> str:
    """Return the device of this name; None: cuda if available, else cpu."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name not in available:
        raise ValueError(f"--device {name!r}: expected cpu, cuda or mps")
    if not available[name]:
        raise ValueError(f"--device {name}: no {name.upper()} device available")
    return name
