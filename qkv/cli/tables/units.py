"""Large numbers in units that people read."""

_STEPS = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_amount(value: int | None, unit: str = "") -> str:
    """Return a number with a decimal prefix, such as 4.19 M or 8.39 GFLOP."""
    if value is None:
        return "-"
    scaled, step = float(value), 0
    while scaled >= 999.5 and step < len(_STEPS) - 1:
        scaled, step = scaled / 1000, step + 1
    return f"{scaled:.3g} {_STEPS[step]}{unit}".strip()


def format_bytes(value: int | None) -> str:
    """Return bytes with a binary prefix, such as 1.18 MiB."""
    if value is None:
        return "-"
    scaled, step = float(value), 0
    while scaled >= 1023.5 and step < len(_BINARY) - 1:
        scaled, step = scaled / 1024, step + 1
    text = f"{scaled:.0f}" if scaled >= 1000 else f"{scaled:.3g}"
    return f"{text} {_BINARY[step]}"
