"""Round numbers along an axis."""

import math

_ROUND = (1, 2, 5, 10)


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that enclose low to high, roughly `about` of them."""
    if not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor for factor in _ROUND if factor * power >= rough * 0.999) * power
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # dividing by a whole number rounds once: 3 / 10 is 0.3, but 3 * 0.1 is not
    whole = round(1 / step) if step < 1 else 0
    return [number / whole if whole else number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose low to high, for an axis of logarithms.

    Powers of ten if there are enough of them, with 2 and 5 between them if not; a range so short that
    those say nothing has the ticks of a linear axis.
    """
    if not 0 < low < high:
        raise ValueError(f"low and high must be positive and in order, got {low} and {high}")
    if high / low < 2.5:
        return linear_ticks(low, high)  # steps shorter than `low`, so that none is 0
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if math.log10(high) - math.log10(low) >= 2.5:
        stride = math.ceil((last - first) / 8)
        return [10.0**power for power in range(first, last + stride, stride)]
    fine = [factor * 10.0**power for power in range(first, last) for factor in (1, 2, 5)] + [10.0**last]
    inside = [tick for tick in fine if low < tick < high]
    below = max(tick for tick in fine if tick <= low * (1 + 1e-9))
    above = min(tick for tick in fine if tick >= high * (1 - 1e-9))
    return sorted({below, *inside, above})


def label(value: float) -> str:
    """As short as a person would write it: 1,500, 0.25, 1e-06."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e7 else f"{value:.6g}"
