"""What may be asked of the rows: the contract between a method and the mechanism."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax import Array

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
