"""How values look on pages: times, lengths of time, sizes, counts. Filters of the templates."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup

from cod.model import dotted

__all__ = ["clock", "count", "dotted", "duration", "percent", "size", "when"]

NONE = Markup("&ndash;")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def when(at: float | None, now: float) -> Markup:
    """A time, as far from now as it is, with the whole time (UTC) to be hovered over: '3 min ago', 'in 2 h'."""
    if at is None:
        return NONE
    words = ("in " + duration(at - now)) if at > now + 1 else "now" if at > now - 1 else duration(now - at) + " ago"
    full = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}" title="{} UTC" data-at="{}">{}</time>').format(
        full.strftime("%Y-%m-%dT%H:%M:%SZ"), full.strftime("%Y-%m-%d %H:%M:%S"), f"{at:.0f}", words)


def clock(at: float | None) -> Markup:
    """A time as such: '2026-11-20 19:30:36 UTC'."""
    if at is None:
        return NONE
    full = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        full.strftime("%Y-%m-%dT%H:%M:%SZ"), full.strftime("%Y-%m-%d %H:%M:%S"))


def duration(seconds: float | None) -> str:
    """A length of time in its one or two largest units: '2 d 3 h', '12 min', '3 min 5 s'."""
    if seconds is None:
        return NONE
    parts: list[str] = []
    left = max(0, round(seconds))
    for unit, size in _UNITS:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
            left = 0 if unit == "min" and left >= 600 else left % size
        elif parts:
            break
    return " ".join(parts) or "0 s"


def size(count: float | None) -> str:
    """Bytes: '1.5 GiB'."""
    if count is None:
        return NONE
    number, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(number) < 1024 or unit == "PiB":
            break
        number /= 1024
    return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"


def percent(done: float, total: float) -> int:
    """Whole per cent, 0 to 100."""
    return max(0, min(100, int(100 * done / total))) if total else 0


def count(number: int, one: str, many: str = "") -> str:
    """'1 node', '2 nodes'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
