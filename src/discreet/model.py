"""A model as pure functions of an unconstrained vector z."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array

from discreet.numpyro_model import ModelError, numpyro_fields
from discreet.schema import Schema

__all__ = ["Linear", "Model", "ModelError", "Row", "from_numpyro"]

Row = Mapping[str, Array]


@dataclass(frozen=True)
class Linear:
    """A row likelihood that is a function of a linear predictor: log p(row | z) = of_predictor(u, rest, row).

    u = features(row) · z[:p] with p features, and rest = z[p:]. With several `predictors` z begins with their weights,
    row by row, and u is a vector: the classes of a softmax regression, or the hidden units of a network with one layer,
    whose outer weights are then the rest. With a `log_partition` A, u = W·features(row) − A(z), one entry for each
    predictor, of its own weights alone: the components of a mixture, whose natural parameters are W. Gradients of many
    rows are matrix products. Not a tuple, because `jax.jit` wants a function that it can refer to weakly.
    """

    features: Callable[[Row], Array]
    of_predictor: Callable[[Array, Array, Row], Array]
    predictors: int = 1
    log_partition: Callable[[Array], Array] | None = None

    def __call__(self, z: Array, row: Row) -> Array:
        """log p(row | z)."""
        features = self.features(row)
        width = self.predictors * len(features)
        u = z[:width].reshape(self.predictors, -1) @ features
        return self.at(u if self.log_partition is None else u - self.log_partition(z), z[width:], row)

    def at(self, u: Array, rest: Array, row: Row) -> Array:
        """The same at this vector of predictors."""
        return self.of_predictor(u[0] if self.predictors == 1 else u, rest, row)


@dataclass(frozen=True, eq=False)
class Model:
    """p(z) · Π_i p(row_i | z), on an unconstrained vector z of length `dim`.

    log_prior(z)               log density of z, Jacobian of the constraining map included
    log_likelihood(z, row)     log p(row | z) of one row, a mapping from column name to scalar; a `Linear` is quicker
    constrain(z)               named parameters as people know them
    sample_prior(key)          one draw of z
    simulate(key, z, row)      the outcome columns of one row, given its covariates; None: cannot simulate
    mean(z, row)               expected outcome of one row, before any clamping to bounds; None: not defined
    columns                    the columns a row must have; `outcome` names those that `simulate` makes
    labels                     names of the entries of vector parameters, by parameter
    coordinates                names of the entries of z, where these are not coefficients first and then others
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
    coordinates: tuple[str, ...] = ()
    description: Mapping[str, Any] = field(default_factory=dict)


def from_numpyro(
    fn: Callable[..., Any],
    schema: Schema,
    arguments: Mapping[str, str | Sequence[str]] | None = None,
    linear_predictor: bool | tuple[str, str] = True,
    **constants: Any,
) -> Model:
    """The model that a NumPyro function describes: global latents, and one plate over independent rows.

    `arguments` maps a parameter of `fn` to a column, or to several columns stacked as a matrix (rows, k); a
    parameter named like a column is that column. Categorical and integer columns arrive as integers, those
    with bounds beyond ±2¹⁵ as floats. `constants` go to `fn` unchanged: sizes, hyperparameters.
    z holds the latents in order of appearance, the one with the linear predictor first, each mapped to the reals by
    `biject_to` of its support.

    `linear_predictor` names a real latent vector and an argument of as many columns, ("w", "X"), that rows see through
    X @ w alone; `log_likelihood` is then a `Linear`, which is quicker. The structure of `fn` must confirm it. By
    default the longest such pair is found without being named; False looks for none.

    Raises `ModelError`, which names the site and the remedy, if the function is not p(z) · Π_i p(row_i | z):
    a latent per row, discrete, improper or under `scale` or `mask`; a `param`; none or several plates over
    rows, or a subsampling one; an observation or factor outside it; a prior that depends on rows; rows that
    depend on each other. The last two are tested on random rows within the schema's bounds. A pair named as
    `linear_predictor` is refused if rows see either of the two in another way.

    >>> import jax, numpyro, numpyro.distributions as dist
    >>> from discreet.schema import Numeric, Schema
    >>> def height(x, y):
    ...     slope = numpyro.sample("slope", dist.Normal(0, 1))
    ...     noise = numpyro.sample("noise", dist.HalfNormal(1))
    ...     with numpyro.plate("rows", x.shape[0]):
    ...         numpyro.sample("height", dist.Normal(slope * x, noise), obs=y)
    >>> model = from_numpyro(height, Schema((Numeric("x", -1, 1), Numeric("y", -5, 5))))
    >>> model.dim, model.columns, model.outcome
    (2, ('x', 'y'), ('y',))
    >>> model.log_likelihood(jax.numpy.zeros(2), {"x": 0.5, "y": 1.0}).round(3)
    Array(-1.419, dtype=float32)
    """
    fields = numpyro_fields(fn, schema, arguments or {}, constants, linear_predictor)
    if isinstance(fields["log_likelihood"], tuple):
        fields["log_likelihood"] = Linear(*fields["log_likelihood"])
    return Model(**fields)


def covariates_of(model: Model) -> list[str]:
    """The columns that the model does not make."""
    return [name for name in model.columns if name not in model.outcome]


def simulate_table(model: Model, key: Array, rows: Row) -> tuple[Array, dict[str, Array]]:
    """A truth z from the prior, and `rows` (columns of equal length) with outcomes drawn from the model at z."""
    simulate = model.simulate
    if simulate is None:
        raise ValueError("this model cannot simulate its outcome: give it a simulate function, or choose plans by hand")
    first, second = jax.random.split(key)
    z = model.sample_prior(first)
    keys = jax.random.split(second, len(next(iter(rows.values()))))
    return z, {**rows, **jax.vmap(lambda key, row: simulate(key, z, row))(keys, rows)}


def softplus_inverse(value: Any, xp: Any = np) -> Any:
    """v with softplus(v) = value, by `numpy` or `jax.numpy`."""
    return value + xp.log(-xp.expm1(-value))


def prior_moments(model: Model, draws: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """Centre and spread of the prior of z: median and quartile range, so that heavy tails do not count for more."""
    with jax.enable_x64(True):
        z = np.asarray(jax.jit(jax.vmap(model.sample_prior))(jax.random.split(jax.random.key(2), draws)))
    if not np.isfinite(z).all():
        raise ValueError("the prior has draws that are not finite: give it a proper, bounded scale")
    low, centre, high = np.quantile(z, [0.25, 0.5, 0.75], axis=0)
    if (high <= low).any():
        raise ValueError(f"parameters {np.flatnonzero(high <= low).tolist()} have a constant prior: leave them out")
    return centre, (high - low) / 1.349
