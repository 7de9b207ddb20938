"""What a plan will need, from measured forwards: bytes per packed token, trusted near the scale of a measurement.

Outside that scale the price is on the safe side and says so; it never follows a measured rate to where nothing was
measured. With points (t_i, p_i), rates r_i = p_i / t_i and the trusted window of a point t_i / G to G t_i:

    in a window   r_i t, of all windows that hold t the largest
    below one     r_j (t_j / G) of the next larger point j: as at the window's lower end, no credit for being smaller
    above all     r_n t x t / t_n: a need per token that grows with the length, as a dense mask's does; within the last
                  window too, where measurements show that it grows: r_n above a smaller r_i by more than the margin

and at least what any smaller plan is priced at, so that the price never falls as the plan grows. Outside every window
what stays is taken to be the whole peak. Above, that is sound for a need that grows at most with the square of the
tokens; below, as sound as the window's lower end; inside, the rate is trusted and the margin stands for its error, as
long as no two measurements speak against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import InputError

__all__ = ["Basis", "Estimate", "Estimator", "Measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured forward of one rank: its packed tokens, the most it held, and what stayed until its backward."""

    packed_tokens: int
    peak_bytes: int
    retained_bytes: int

    def __post_init__(self) -> None:
        if self.packed_tokens < 1 or not 0 <= self.retained_bytes <= self.peak_bytes:
            raise InputError(
                f"a forward of {self.packed_tokens} tokens with peak {self.peak_bytes} and retained "
                f"{self.retained_bytes} bytes",
                remedy="measure at least one token, and 0 <= retained <= peak",
            )


class Basis(StrEnum):
    """Where a price comes from."""

    NOTHING = "nothing"
    """No tokens: nothing is needed."""

    MEASURED = "measured"
    """Within the trusted window of a measurement."""

    BELOW = "below"
    """Smaller than the window of the next larger measurement, priced at its lower end."""

    ABOVE = "above"
    """Larger than every window, priced as if the need per token kept growing."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A price in bytes, margin included: the peak of one forward and what of it stays until the backward."""

    peak_bytes: int
    retained_bytes: int
    basis: Basis

    @property
    def trusted(self) -> bool:
        """Whether it rests on a measurement near this scale."""
        return self.basis in {Basis.NOTHING, Basis.MEASURED}

    @property
    def transient_bytes(self) -> int:
        """What is free again when the forward is done."""
        return self.peak_bytes - self.retained_bytes


class Estimator:
    """Prices plans by their packed tokens.

    `growth` is G, `margin_percent` is added to every price. `measured` must hold at least one forward: without any
    there is nothing to extrapolate from.

    >>> Estimator([Measured(1000, 10_000, 4_000)], margin_percent=0).price(2000)
    Estimate(peak_bytes=20000, retained_bytes=8000, basis=<Basis.MEASURED: 'measured'>)
    """

    def __init__(self, measured: Iterable[Measured], *, growth: int = 2, margin_percent: int = 10) -> None:
        self._points = _one_a_scale(measured)
        self._growth = growth
        self._margin_percent = margin_percent
        if not self._points:
            raise InputError("an estimator without a measured forward", remedy="measure one small forward first")
        if growth < 1 or margin_percent < 0:
            raise InputError(f"growth {growth}, margin {margin_percent} %", remedy="growth >= 1 and margin >= 0")

    @property
    def points(self) -> tuple[Measured, ...]:
        """The measured forwards that prices rest on, by scale."""
        return tuple(self._points)

    def observe(self, measured: Measured) -> None:
        """Learn from a forward that was run: prices near its scale are at least what it took.

        It is kept only where it says something new: it took more than its price without the margin, or it lies at
        least a quarter beyond every scale measured so far. So a long run keeps a bounded number of points.
        """
        tokens = measured.packed_tokens
        known = self.price(tokens)
        dearer = (
            self._with_margin(measured.peak_bytes) > known.peak_bytes
            or self._with_margin(measured.retained_bytes) > known.retained_bytes
        )
        first, last = self._points[0].packed_tokens, self._points[-1].packed_tokens
        if dearer or 4 * tokens >= 5 * last or 5 * tokens <= 4 * first:
            self._points = _one_a_scale([*self._points, measured])

    def price(self, packed_tokens: int) -> Estimate:
        """What a forward of `packed_tokens` on this rank needs."""
        if packed_tokens == 0:
            return Estimate(0, 0, Basis.NOTHING)
        basis = self._basis(packed_tokens)
        peak = self._priced([point.peak_bytes for point in self._points], packed_tokens, basis)
        retained = peak
        if basis is Basis.MEASURED:
            retained = min(peak, self._priced([point.retained_bytes for point in self._points], packed_tokens, basis))
        return Estimate(peak, retained, basis)

    def least(self, packed_tokens: int) -> Estimate:
        """A lower bound of the price of every plan of at least `packed_tokens`, by its peak and by what it retains."""
        if packed_tokens == 0:
            return Estimate(0, 0, Basis.NOTHING)
        price = self.price(packed_tokens)
        inside = [point.retained_bytes for point in self._points]
        retained = min(price.peak_bytes, self._priced(inside, packed_tokens, Basis.MEASURED))
        return Estimate(price.peak_bytes, retained, price.basis)

    def _basis(self, tokens: int) -> Basis:
        growth = self._growth
        if any(point.packed_tokens <= growth * tokens <= growth**2 * point.packed_tokens for point in self._points):
            return Basis.MEASURED
        return Basis.BELOW if tokens < self._points[-1].packed_tokens else Basis.ABOVE

    def _priced(self, values: Sequence[int], tokens: int, basis: Basis) -> int:
        """The module's formula for `values`, one for each point, with the margin; exact integers, rounded up."""
        growth = self._growth
        prices = [0]
        for value, point in zip(values, self._points, strict=True):
            scale = point.packed_tokens
            if scale <= growth * tokens:
                prices.append(_up(value * min(tokens, growth * scale), scale))
            elif basis is Basis.BELOW:
                prices.append(_up(value, growth))
                break  # the next larger point
        scale = self._points[-1].packed_tokens
        if basis is Basis.ABOVE or (tokens > scale and self._grows(values)):
            prices.append(_up(values[-1] * tokens * tokens, scale * scale))
        return self._with_margin(max(prices))

    def _grows(self, values: Sequence[int]) -> bool:
        """Whether the largest measurement took more per token than a smaller one, by more than the margin."""
        last, scale = values[-1], self._points[-1].packed_tokens
        return any(
            100 * last * point.packed_tokens > (100 + self._margin_percent) * value * scale
            for value, point in zip(values, self._points, strict=True)
        )

    def _with_margin(self, value: int) -> int:
        return _up(value * (100 + self._margin_percent), 100)


def _one_a_scale(measured: Iterable[Measured]) -> list[Measured]:
    """One point for each number of tokens, smallest first: the most that any forward of so many took."""
    points: dict[int, Measured] = {}
    for each in measured:
        known = points.get(each.packed_tokens, each)
        peak, retained = max(known.peak_bytes, each.peak_bytes), max(known.retained_bytes, each.retained_bytes)
        points[each.packed_tokens] = Measured(each.packed_tokens, peak, retained)
    return [points[tokens] for tokens in sorted(points)]


def _up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
