"""What a set of generations adds up to: the numbers above the admin's list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, QuerySet, Sum

from generation.models import Generation
from nodes.amounts import MISSING

#: Medians need the values themselves, which no database that we support sorts for all: of more rows, the newest count.
SPEED_ROWS = 10_000


@dataclass(frozen=True)
class Spread:
    """Median and 95th percentile; None of nothing."""

    median: float | None
    p95: float | None


@dataclass(frozen=True)
class Totals:
    """Counts are of all rows; speeds of the newest `speed_rows`, which are all of them unless `is_cut`."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    first_token: Spread
    tokens_per_second: Spread
    speed_rows: int

    @property
    def is_cut(self) -> bool:
        return self.speed_rows < self.requests

    @property
    def in_words(self) -> dict[str, str]:
        """As the page writes it."""
        note = f"Medians and percentiles are those of the newest {self.speed_rows:,} of these generations."
        return {
            "requests": f"{self.requests:,}",
            "prompt_tokens": f"{self.prompt_tokens:,}",
            "completion_tokens": f"{self.completion_tokens:,}",
            "first_token_median": _number(self.first_token.median, ".2f", " s"),
            "first_token_p95": _number(self.first_token.p95, ".2f", " s"),
            "speed_median": _number(self.tokens_per_second.median, ".1f"),
            "speed_p95": _number(self.tokens_per_second.p95, ".1f"),
            "note": note if self.is_cut else "",
        }


def totals_of(rows: QuerySet[Generation], *, speed_rows: int = SPEED_ROWS) -> Totals:
    """Two queries, however many rows."""
    sums = rows.order_by().aggregate(
        requests=Count("pk"), prompt=Sum("prompt_tokens"), completion=Sum("completion_tokens")
    )
    speeds = list(
        rows.order_by("-started_at").values_list("time_to_first_token", "tokens_per_second")[:speed_rows]
    )  # fmt: skip
    return Totals(
        requests=sums["requests"],
        prompt_tokens=sums["prompt"] or 0,
        completion_tokens=sums["completion"] or 0,
        first_token=_spread([first for first, _ in speeds if first is not None]),
        tokens_per_second=_spread([pace for _, pace in speeds if pace is not None]),
        speed_rows=len(speeds),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Between the two nearest of the sorted values, weighted, as PERCENTILE_CONT does. `values` must not be empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _spread(values: list[float]) -> Spread:
    return Spread(percentile(values, 0.5), percentile(values, 0.95)) if values else Spread(None, None)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return MISSING if value is None else f"{value:{form}}{unit}"
