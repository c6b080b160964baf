"""Posterior: named draws with the guarantee they were bought under."""

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from discreet.accounting import Guarantee
from discreet.atomic import new_file
from discreet.methods.gaussian import MEAN_FIELD, Family
from discreet.model import Model, covariates_of
from discreet.release import Release
from discreet.schema import Schema

if TYPE_CHECKING:
    import arviz
    import pandas

PREDICTION_DRAWS = 1000
_Z = "unconstrained"  # in files; a parameter may itself be called z


@dataclass(frozen=True)
class Posterior:
    """Draws of named parameters, each of shape (chain, draw, …), and of the unconstrained vector `z`.

    `guarantee` says what they cost and `info` how they were made. `model` and `schema` serve `predict` and
    `synthesize`; `release` is what the mechanism told. None of it can reveal more than the release did.
    """

    draws: Mapping[str, np.ndarray]
    z: np.ndarray
    guarantee: Guarantee
    info: Mapping[str, Any]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    model: Model | None = None
    schema: Schema | None = None
    release: Release | None = None

    def __repr__(self) -> str:
        chains, draws = self.z.shape[:2]
        return (
            f"Posterior({self.info.get('method')}: {chains * draws} draws of {', '.join(self.draws)}; {self.guarantee})"
        )

    def summary(self, prob: float = 0.9) -> "pandas.DataFrame":
        """Mean, sd and central interval of probability `prob`, one row per scalar parameter."""
        import pandas

        if not 0 < prob < 1:
            raise ValueError(f"prob={prob} must lie in (0, 1)")
        records = {}
        for name, values in self.draws.items():
            flat = values.reshape(-1, *values.shape[2:])
            low, high = np.quantile(flat, [(1 - prob) / 2, (1 + prob) / 2], axis=0)
            for place in np.ndindex(flat.shape[1:]):
                records[self._label(name, place)] = [
                    flat.mean(0)[place],
                    flat.std(0)[place],
                    low[place],
                    high[place],
                ]
        columns = ["mean", "sd", f"{50 * (1 - prob):g}%", f"{50 * (1 + prob):g}%"]
        return pandas.DataFrame.from_dict(records, orient="index", columns=columns)

    def predict(self, table) -> np.ndarray:
        """Expected outcome of each row of `table` under up to 1000 draws, shape (draws, rows).

        `table` needs the covariates only. It is not the private table: what goes in is not protected here.
        """
        if self.model is None or self.schema is None or self.model.mean is None:
            raise ValueError(
                "this posterior cannot predict: it has no model with a mean; pass model= to Posterior.load"
            )
        covariates = covariates_of(self.model)
        if not covariates:
            raise ValueError("this model has no covariates to predict from")
        columns = Schema(self.schema.select(covariates).columns).encode(table)
        flat = self.z.reshape(-1, self.z.shape[-1])
        thin = flat[:: max(1, len(flat) // PREDICTION_DRAWS)][:PREDICTION_DRAWS]
        with jax.enable_x64(True):
            over_rows = jax.vmap(self.model.mean, in_axes=(None, 0))
            return np.asarray(jax.jit(jax.vmap(over_rows, in_axes=(0, None)))(thin, columns))

    def synthesize(
        self, n: int, m: int, *, covariates: Any = None, seed: Any = None, naive: bool = False
    ) -> "Iterator[dict[str, np.ndarray]]":
        """`m` tables of `n` rows each, one by one, each of one draw: see `synth.synthesize`. Costs no privacy."""
        from discreet.posterior.predictive import synthesize

        return synthesize(self, n, m, covariates=covariates, seed=seed, naive=naive)

    def to_arviz(self) -> "arviz.InferenceData":
        """The draws as ArviZ InferenceData; guarantee and info are attributes of its posterior group."""
        arviz = _arviz()
        dims = {name: [f"{name}_term"] for name in self.labels}
        coords = {f"{name}_term": list(labels) for name, labels in self.labels.items()}
        attrs = {"guarantee": json.dumps(self.guarantee.to_dict()), "info": json.dumps(dict(self.info))}
        dataset = arviz.dict_to_dataset(
            {**self.draws, _Z: self.z}, dims=dims | {_Z: ["coordinate"]}, coords=coords, attrs=attrs
        )
        return arviz.InferenceData(posterior=dataset)

    def save(self, path: str | Path) -> Path:
        """Write the draws, guarantee and info as one NetCDF file, all or nothing."""
        with new_file(path) as scratch:
            self.to_arviz().to_netcdf(str(scratch), engine="h5netcdf")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, model: Model | None = None, schema: Schema | None = None) -> "Posterior":
        """Read what `save` wrote. `model` and `schema` are needed only for `predict` and `synthesize`."""
        arviz = _arviz()
        if not Path(path).is_file():
            raise ValueError(f"{path} does not exist")
        try:
            group = arviz.from_netcdf(str(path), engine="h5netcdf").posterior
            guarantee = Guarantee.from_dict(json.loads(group.attrs["guarantee"]))
            info = json.loads(group.attrs["info"])
            draws = {str(name): group[name].values for name in group.data_vars if name != _Z}
            labels = {n: tuple(group[f"{n}_term"].values.tolist()) for n in draws if f"{n}_term" in group.coords}
            return cls(draws, group[_Z].values, guarantee, info, labels, model, schema)
        except Exception as error:  # damaged files make HDF5 and what reads it raise whatever they come across
            said = str(error) or type(error).__name__
            raise ValueError(f"{path} is not a saved discreet posterior: {said}") from None

    def _label(self, name: str, place: tuple[int, ...]) -> str:
        if name in self.labels:
            return self.labels[name][place[0]]
        return name + (f"[{','.join(map(str, place))}]" if place else "")


def _arviz() -> Any:
    """ArviZ, which announces its own future at every first import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def from_draws(z: np.ndarray, model: Model, guarantee: Guarantee, **parts: Any) -> Posterior:
    """The posterior of the model's named parameters from draws of z, shape (draws, dim)."""
    with jax.enable_x64(True):
        named = jax.jit(jax.vmap(model.constrain))(z)
    # NetCDF keeps "/" for groups; NumPyro's scope puts it into names
    draws = {name.replace("/", "."): np.asarray(values)[None] for name, values in named.items()}
    return Posterior(draws, z[None], guarantee, parts.pop("info"), model.labels, model, **parts)


def through_q(rng: np.random.Generator, phi: np.ndarray, family: Family = MEAN_FIELD) -> np.ndarray:
    """One draw z ~ q(·; φ) for each φ, any leading axes."""
    flat = phi.reshape(-1, phi.shape[-1])
    eta = rng.standard_normal((len(flat), 1, family.dim(phi)))
    with jax.enable_x64(True):
        z = jax.lax.map(lambda each: family.draws(*each), (flat, eta), batch_size=256)
    return np.asarray(z).reshape(*phi.shape[:-1], -1)
