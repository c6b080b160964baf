"""A model as pure functions of an unconstrained vector z."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax import Array

Row = Mapping[str, Array]


@dataclass(frozen=True)
class Model:
    """p(z) · Π_i p(row_i | z), on an unconstrained vector z of length `dim`.

    log_prior(z)               log density of z, Jacobian of the constraining map included
    log_likelihood(z, row)     log p(row | z) of one row, a mapping from column name to scalar
    constrain(z)               named parameters as people know them
    sample_prior(key)          one draw of z
    simulate(key, z, row)      the outcome columns of one row, given its covariates; None: cannot simulate
    mean(z, row)               expected outcome of one row; None: not defined
    columns                    the columns a row must have; `outcome` names those that `simulate` makes
    labels                     names of the entries of vector parameters, by parameter
    description                plain public values that say which model this is
    """

    dim: int
    log_prior: Callable[[Array], Array]
    log_likelihood: Callable[[Array, Row], Array]
    constrain: Callable[[Array], dict[str, Array]]
    sample_prior: Callable[[Array], Array]
    columns: tuple[str, ...]
    outcome: tuple[str, ...] = ()
    simulate: Callable[[Array, Array, Row], dict[str, Array]] | None = None
    mean: Callable[[Array, Row], Array] | None = None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    description: Mapping[str, Any] = field(default_factory=dict)
