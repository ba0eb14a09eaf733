"""Numbers and durations as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """E.g. ``45 s``, ``4 min 05 s``, ``10 h 03 min``."""
    whole = round(seconds)
    if seconds < 10 and whole != seconds:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
