"""Small charts as the coordinates of an SVG: how many runs ended, and failed, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from workflow.dashboard.reading import CAP, Bucket

WIDTH: Final = 240
HEIGHT: Final = 44


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    width: float
    y: float
    height: float
    failed_y: float
    failed_height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """`ended` and `failed` are sums over all steps; with `capped` they are lower bounds."""

    label: str
    bars: list[Bar]
    ended: int
    failed: int
    capped: bool
    width: int = WIDTH
    height: int = HEIGHT


def chart(label: str, buckets: Sequence[Bucket]) -> Chart:
    """Bars on a common scale, the failed part of each at its foot."""
    top = max((bucket.ended for bucket in buckets), default=0) or 1
    step = WIDTH / max(len(buckets), 1)
    bars = []
    for index, bucket in enumerate(buckets):
        height, failed = HEIGHT * bucket.ended / top, HEIGHT * bucket.failed / top
        if bucket.ended:  # one among thousands is still to be seen
            height = max(height, 2.0)
        if bucket.failed:
            failed = max(failed, 2.0)
        bars.append(
            Bar(
                x=round(index * step, 2),
                width=round(max(step - 1, 1), 2),
                y=round(HEIGHT - height, 2),
                height=round(height, 2),
                failed_y=round(HEIGHT - failed, 2),
                failed_height=round(failed, 2),
            )
        )
    return Chart(
        label=label,
        bars=bars,
        ended=sum(bucket.ended for bucket in buckets),
        failed=sum(bucket.failed for bucket in buckets),
        capped=any(bucket.ended >= CAP for bucket in buckets),
    )
