"""What may be asked of the rows: the contract between a method and the mechanism."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from discreet.plan import Plan

Numbers = Array | np.ndarray


class Point(NamedTuple):
    """One step of the public trace: the iterate, and what the answer said there.

    y = κA(x − φ*) + noise, with noise sd `scale` × the plan's noise_std. `x`, `y` and `scale` speak of the first
    coordinates of φ: all of them, or those that rows were asked about. `scale` undoes whatever the method did to the
    answer. All of it is public.
    """

    iterate: Numbers
    x: Numbers
    y: Numbers
    scale: Numbers


class Spread(NamedTuple):
    """Where a row's slopes are taken, and how they make an answer, in public.

    There are `draws` points: centre + arms, then centre − arms as far as they go (antithetic pairs). With
    G_k = (g_k ⊗ x, r_k), where g_k are a row's slopes by the linear predictors at the k-th point, x its features and
    r_k its slopes by what else there is, and η_k the ± `eta` of that point. Where predictors have a log partition,
    `partition` is what it takes from them at each point, (draws, predictors), and `means` (draws, dim) its derivatives
    c_k: then G_k = (g_k ⊗ (x − c_k), r_k), and answers are aligned, or mean-field with one point.

    "aligned"      factor ∘ G_k for each point
    "mean-field"   factor ∘ (ΣG_k, slope ∘ Ση_k∘G_k)
    "full-rank"    the same, and factor ∘ the entries of ΣG_k η_kᵀ below the diagonal, row by row
    """

    centre: Numbers
    arms: Numbers
    eta: Numbers
    slope: Numbers
    factor: Numbers
    partition: Numbers | None = None
    means: Numbers | None = None


class Products(NamedTuple):
    """An answer that is linear in features of the row, so that sums of clipped answers are matrix products.

    row_value                                whose answers these are: a query with another one is summed row by row
    kind                                     which `Spread`
    dim, draws, predictors                   length of a point z, number of points, of linear predictors W·x
    features(row) -> x                       of the row alone
    slopes(u, rest, row) -> (g, r)           of one row at one point z = (W, rest), by u = W·x and by the rest
    spread(question) -> Spread               public
    """

    row_value: Callable[[Any, Mapping[str, Array]], Array]
    kind: str
    dim: int
    draws: int
    predictors: int
    features: Callable[[Mapping[str, Array]], Array]
    slopes: Callable[[Array, Array, Mapping[str, Array]], tuple[Array, Array]]
    spread: Callable[[Any], Spread]


class Query(NamedTuple):
    """A method's public half. None of these functions sees more than one row, and only `row_value` sees one.

    init(key) -> state                               where to start
    ask(chance, state) -> question                   the public question of this step
    row_value(question, row) -> vector of `size`     one row's answer; the mechanism clips it
    update(state, question, answer) -> (state, Point)  public: prior and entropy enter here, after the noise
    last(state) -> vector                            the iterate that the state holds
    columns                                          the columns that row_value reads
    settings                                         plain public values that describe the question, for the release
    chance(key) -> chance                            a step's public randomness, made ahead for many steps at once;
                                                     without it `ask` gets the key
    products                                         the same answers as `row_value`'s, if they can be summed faster
    """

    init: Callable[[Array], Any]
    ask: Callable[[Any, Any], Any]
    row_value: Callable[[Any, Mapping[str, Array]], Array]
    update: Callable[[Any, Any, Array], tuple[Any, Point]]
    last: Callable[[Any], Array]
    size: int
    columns: tuple[str, ...]
    settings: Mapping[str, Any]
    chance: Callable[[Array], Any] = lambda key: key
    products: Products | None = None

    @property
    def program(self) -> "Program":
        """What a step is compiled from: queries with the same functions share it."""
        return Program(self.chance, self.ask, self.row_value, self.update, self.products)


class Phase(NamedTuple):
    """What is asked under one plan, and what is kept of it: "blocks", "cross" or "trace"."""

    plan: Plan
    query: Query
    keep: str = "blocks"


class Program(NamedTuple):
    """The functions of a query that a step consists of."""

    chance: Callable[[Array], Any]
    ask: Callable[[Any, Any], Any]
    row_value: Callable[[Any, Mapping[str, Array]], Array]
    update: Callable[[Any, Any, Array], tuple[Any, Point]]
    products: Products | None
