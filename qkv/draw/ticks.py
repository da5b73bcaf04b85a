"""Axis ticks at round values."""

import math

_ROUND = (1, 2, 5, 10)


def linear_ticks(low: float, high: float, target_count: int = 5) -> list[float]:
    """Return about `target_count` multiples of 1, 2 or 5 times a power of ten that enclose [low, high]."""
    if not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    rough = (high - low) / target_count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor for factor in _ROUND if factor * power >= rough * 0.999) * power
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # dividing by an integer rounds once: 3 / 10 is 0.3, but 3 * 0.1 is not
    divisor = round(1 / step) if step < 1 else 0
    return [number / divisor if divisor else number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values that enclose [low, high] on a logarithmic axis.

    Powers of ten if there are enough, otherwise with 2 and 5 between them; a very short range gets linear ticks.
    """
    if not 0 < low < high:
        raise ValueError(f"low and high must be positive and in order, got {low} and {high}")
    if high / low < 2.5:
        return linear_ticks(low, high)  # the step is below `low`, so no tick is 0
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if math.log10(high) - math.log10(low) >= 2.5:
        stride = math.ceil((last - first) / 8)
        return [10.0**power for power in range(first, last + stride, stride)]
    fine = [factor * 10.0**power for power in range(first, last) for factor in (1, 2, 5)] + [10.0**last]
    inside = [tick for tick in fine if low < tick < high]
    below = max(tick for tick in fine if tick <= low * (1 + 1e-9))
    above = min(tick for tick in fine if tick >= high * (1 - 1e-9))
    return sorted({below, *inside, above})


def format_tick(value: float) -> str:
    """Format a value compactly: 1,500, 0.25, 1e-06."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e7 else f"{value:.6g}"
