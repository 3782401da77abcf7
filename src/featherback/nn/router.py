"""The router of a mixture of experts: which experts a token passes, and with which weights.

    z = n W_r^T (T, E);   each token passes the k experts with the highest scores;   y = sum of w_e expert_e(n)

    gating                 scores            weights w_e of the selected experts
    softmax                z                 c softmax(z)_e, over all experts
    softmax, normalised    z                 c softmax(z of the selected)_e
    sigmoid                s + b, s = sig(z) c s_e
    sigmoid, normalised    s + b             c s_e / (sum of s over the selected + eps)

c is a constant. The selection bias b only decides which experts are selected. The selection itself has no gradient.
With dw_e the gradient of a weight, and w'_e = w_e / c:

    softmax                dz_j = c p_j ([j selected] dw_j - sum over the selected of p dw),  p = softmax(z), for all j
    softmax, normalised    dz_e = c w'_e (dw_e - sum of w' dw)
    sigmoid                dz_e = c dw_e s_e (1 - s_e)
    sigmoid, normalised    dz_e = c (dw_e - sum of w' dw) s_e (1 - s_e) / (sum of s + eps)

The router runs on the host, a few tokens at a time: E is small. See docs/derivations/experts.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array
from featherback.errors import FeatherbackError
from featherback.nn.context import Context
from featherback.nn.span import pieces

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
ROWS = 64
"""Tokens routed at a time, which bounds the temporary arrays (ROWS, E)."""
ON_HOST = 12
"""Float32 values that correspond to the memory of an entry of a routing: row, place, weight, gradient, temporaries."""


class Group(NamedTuple):
    """The tokens of one expert: entries [first, last) of a `Routing`."""

    number: int  # of the group
    expert: int
    first: int
    last: int


@dataclass(frozen=True)
class Routing:
    """Which tokens each expert sees. An entry is a token with one of its experts; entries are sorted by expert."""

    groups: Sequence[Group]
    chosen: NDArray[np.intp]  # (T, k)
    rows: Int32  # (T k,): the token of each entry
    places: NDArray[np.intp]  # (T k,): where the entry is among the selected experts (T, k) of all tokens
    weights: Float32  # (T k,)
    gradients: Float32  # (T k,): dw, written by the branch

    @classmethod
    def of(cls, chosen: NDArray[np.intp], weights: Float32) -> Routing:
        """Return the routing for the `chosen` experts (T, k) with these weights (T, k)."""
        experts = chosen.reshape(-1)
        places = np.argsort(experts, kind="stable")
        found, starts = np.unique(experts[places], return_index=True)
        ends = [*starts[1:].tolist(), len(places)]
        groups = [Group(*each) for each in zip(range(len(found)), found.tolist(), starts.tolist(), ends)]
        rows = (places // chosen.shape[1]).astype(np.int32)
        return cls(groups, chosen, rows, places, weights.reshape(-1)[places], np.zeros(len(places), np.float32))

    @classmethod
    def expected(cls, tokens: int, experts: int, used: int) -> Routing:
        """Return a routing for counting: the most tokens that one expert can see, then the others evenly.

        The number of experts is the mean if each token selects its experts at random.
        """
        total, distinct = tokens * used, expected_experts(tokens, experts, used)
        others = distinct - 1
        ends = [tokens, *(tokens + round((total - tokens) * (n + 1) / others) for n in range(others))]
        if not others:
            ends = [total]
        groups = [Group(n, n, first, last) for n, (first, last) in enumerate(zip([0, *ends], ends))]
        blank = np.zeros(total, np.float32)
        chosen = np.zeros((tokens, used), np.intp)
        return cls(groups, chosen, np.zeros(total, np.int32), np.arange(total), blank, blank)

    def by_token(self, values: Float32) -> Float32:
        """Return values (T k,) of the entries as (T, k), a row per token."""
        found = np.empty_like(values)
        found[self.places] = values
        return found.reshape(self.chosen.shape)


def expected_experts(tokens: int, experts: int, used: int) -> int:
    """Return the mean number of experts that some token selects, if each selects `used` of them at random."""
    mean = experts * -np.expm1(tokens * np.log1p(-used / experts)) if used < experts else experts
    return max(used, min(experts, round(float(mean))))


@dataclass(frozen=True, kw_only=True)
class Gating:
    """How scores become a selection and its weights. `sigmoid` False: softmax."""

    experts: int  # E
    used: int  # k
    sigmoid: bool = False
    normalised: bool = True
    scale: float = 1.0  # c
    eps: float = 0.0

    def route(
        self, ctx: Context, z: Array, place: Array | None, again: bool, where: str, bias: Array | None = None
    ) -> Routing:
        """Select the experts of each token from z (T, E), and compute their weights.

        `place` (T, k) keeps the selection, if it is not None; it is read if `again`, else written.
        """
        ctx.floats("routing, on the host", len(z), ON_HOST * self.used)  # counts what NumPy allocates

        def found() -> Routing:
            with ctx.backend.host(z) as scores:
                if again and place is not None:
                    with ctx.backend.host(place) as kept:
                        chosen = kept.astype(np.intp)
                else:
                    with nullcontext() if bias is None else ctx.backend.host(bias) as added:
                        chosen = self.select(scores, added, where)
                weights = self.weights(scores, chosen, where)
            if place is not None and not again:
                with ctx.backend.host(place, write=True) as out:
                    out[...] = chosen
            return Routing.of(chosen, weights)

        return ctx.backend.most(found, Routing.expected(len(z), self.experts, self.used))

    def scores_backward(self, ctx: Context, z: Array, routing: Routing, dz: Array) -> None:
        """dz (T, E), float32 = the gradient of z (T, E), from those of the weights, which `routing` holds."""

        def found() -> None:
            with ctx.backend.host(z) as scores, ctx.backend.host(dz, write=True) as out:
                self.backward(scores, routing.chosen, routing.by_token(routing.gradients), out)

        ctx.backend.most(found, None)

    def select(self, z: Float32, bias: Float32 | None, where: str) -> NDArray[np.intp]:
        """Return the experts (T, k) of each token, in the order of their numbers, from z (T, E).

        `bias` (E,) is added to the scores. Raises FeatherbackError, beginning with `where`, if z is not finite.
        """
        chosen = np.empty((len(z), self.used), np.intp)
        for part in _parts(len(z)):
            scores = z[part]
            if not np.isfinite(scores).all():
                raise FeatherbackError(
                    f"{where} gives NaN or infinite scores, so no experts can be selected: the model's file is "
                    "damaged, or training has diverged. Check the file, or train with a lower learning rate."
                )
            if self.sigmoid:
                scores = _sigmoid(scores)
            if bias is not None:
                scores = scores + bias
            best = np.argpartition(-scores, self.used - 1, axis=1)[:, : self.used]
            chosen[part] = np.sort(best, axis=1)
        return chosen

    def weights(self, z: Float32, chosen: NDArray[np.intp], where: str) -> Float32:
        """Return the weights (T, k) of the selected experts.

        Raises FeatherbackError, beginning with `where`, if all experts of a token have the weight 0.
        """
        found = np.empty(chosen.shape, np.float32)
        for part in _parts(len(z)):
            unscaled = self._unscaled(z[part], chosen[part])
            if not unscaled.any(axis=1).all() or not np.isfinite(unscaled).all():
                raise FeatherbackError(
                    f"{where} routes a token to no expert, because all of its scores are 0: the model's file is "
                    "damaged, or training has diverged. Check the file, or train with a lower learning rate."
                )
            np.multiply(unscaled, np.float32(self.scale), out=found[part])
        return found

    def backward(self, z: Float32, chosen: NDArray[np.intp], dw: Float32, dz: Float32) -> None:
        """dz (T, E) = the gradient of z (T, E), from dw (T, k)."""
        for part in _parts(len(z)):
            scores, at, gradient = z[part], chosen[part], np.float32(self.scale) * dw[part]
            if self.sigmoid or self.normalised:
                dz[part] = 0
                np.put_along_axis(dz[part], at, self._of_selected(scores, at, gradient), axis=1)
            else:
                p = _softmax(scores)
                mine = np.take_along_axis(p, at, axis=1)
                np.multiply(p, -(mine * gradient).sum(axis=1, keepdims=True), out=dz[part])
                np.put_along_axis(dz[part], at, np.take_along_axis(dz[part], at, axis=1) + mine * gradient, axis=1)

    def _of_selected(self, z: Float32, chosen: NDArray[np.intp], dw: Float32) -> Float32:
        """Return the gradient (T, k) of the selected scores z, where the others have none."""
        if self.normalised:
            w = self._unscaled(z, chosen)
            dw = dw - (w * dw).sum(axis=1, keepdims=True)
            if not self.sigmoid:
                return w * dw
        s = _sigmoid(np.take_along_axis(z, chosen, axis=1))
        slopes = s * (1 - s)
        if self.normalised:
            slopes /= s.sum(axis=1, keepdims=True) + np.float32(self.eps)
        return slopes * dw

    def _unscaled(self, z: Float32, chosen: NDArray[np.intp]) -> Float32:
        """Return the weights (T, k) without the factor c."""
        if self.sigmoid:
            s = _sigmoid(np.take_along_axis(z, chosen, axis=1))
            if not self.normalised:
                return s
            with np.errstate(invalid="ignore"):
                return s / (s.sum(axis=1, keepdims=True) + np.float32(self.eps))
        if self.normalised:
            return _softmax(np.take_along_axis(z, chosen, axis=1))
        return np.take_along_axis(_softmax(z), chosen, axis=1)


def _parts(tokens: int) -> Iterator[slice]:
    return (slice(first, last) for first, last in pieces(tokens, ROWS))


def _softmax(z: Float32) -> Float32:
    p: Float32 = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p


def _sigmoid(z: Float32) -> Float32:
    with np.errstate(over="ignore"):  # exp(-z) may be infinite; its reciprocal is 0
        return np.reciprocal(1 + np.exp(-z))
