"""How numbers and intervals are written in a report: never more digits than the interval allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MISSING = "–"
"""Shown where a value does not exist."""


def finite(value: Any) -> float | None:
    """Give the value as a float, or None where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def ends(interval: Any) -> tuple[float, float] | None:
    """Give the two ends of ``[low, high]`` or ``{"low", "high"}``, or None where one is missing."""
    if isinstance(interval, dict):
        interval = [interval.get("low"), interval.get("high")]
    if not isinstance(interval, Sequence) or isinstance(interval, str) or len(interval) != 2:
        return None
    low, high = finite(interval[0]), finite(interval[1])
    return None if low is None or high is None else (low, high)


def decimals(interval: tuple[float, float] | None, most: int) -> int:
    """Decimals such that the width of the interval has two digits, between 1 and ``most``."""
    if interval is None or interval[1] <= interval[0]:
        return most
    return max(1, min(most, 1 - math.floor(math.log10(interval[1] - interval[0]))))


def number(value: Any, interval: Any = None, *, most: int = 4, sign: bool = False) -> str:
    """Write a value with as many decimals as its interval allows, at most ``most``."""
    found = finite(value)
    if found is None:
        return MISSING
    return _signed(f"{found:{'+' if sign else ''}.{decimals(ends(interval), most)}f}")


def span(interval: Any, *, most: int = 4, sign: bool = False) -> str:
    """Write an interval as ``[low, high]``, or nothing where it does not exist."""
    pair = ends(interval)
    if pair is None:
        return ""
    kind = f"{'+' if sign else ''}.{decimals(pair, most)}f"
    return _signed(f"[{pair[0]:{kind}}, {pair[1]:{kind}}]")


def _signed(text: str) -> str:
    """Hyphens become minus signs, at which no line breaks."""
    return text.replace("-", "−")


def count(value: Any) -> str:
    """Write a count with thousands separators."""
    found = finite(value)
    return MISSING if found is None else f"{found:,.0f}"


def seconds(value: Any) -> str:
    """Write a duration: ``0.42 s``, ``41 s``, ``3 min 20 s``, ``2 h 5 min``."""
    found = finite(value)
    if found is None:
        return MISSING
    if found < 10:
        return f"{found:.2f} s"
    whole = round(found)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(value: Any) -> str:
    """Write bytes with a binary unit."""
    found = finite(value)
    if found is None:
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(found) < 1024 or unit == "GiB":
            return f"{found:,.0f} B" if unit == "B" else f"{found:,.1f} {unit}"
        found /= 1024
    return MISSING
