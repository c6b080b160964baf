"""discreet: Bayesian inference that keeps secrets and admits its noise.

    Schema ─┐
    Model  ─┼─► Query ─┐
    Plan  ──┴──────────┼─► mechanism.run(noise, plan, query, rows) ─► Release ─► posterior.* ─► Posterior
    Rows (secret) ─────┘          the only code that sees rows        ▲
                                                              privacy boundary

Names are loaded when they are first used, so `import discreet` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from discreet.accounting import Guarantee, calibrate, guarantee
    from discreet.families.glm import glm
    from discreet.families.mixture import mixture
    from discreet.families.network import network
    from discreet.fitting import Checkpoint, Rows, encode, fit, paid_units, simulated
    from discreet.ledger import Account, Budget, open_account
    from discreet.model import Model, from_numpyro
    from discreet.plan import Plan
    from discreet.planner import choose
    from discreet.posterior.reading import Options, naive_posterior, read
    from discreet.posterior.types import Posterior
    from discreet.release import Release
    from discreet.schema import Categorical, Numeric, Schema, Unit

_HOMES = {
    "Account": "ledger",
    "Budget": "ledger",
    "Categorical": "schema",
    "Checkpoint": "fitting",
    "Guarantee": "accounting",
    "Model": "model",
    "Numeric": "schema",
    "Options": "posterior.reading",
    "Plan": "plan",
    "Posterior": "posterior.types",
    "Release": "release",
    "Rows": "fitting",
    "Schema": "schema",
    "Unit": "schema",
    "calibrate": "accounting",
    "choose": "planner",
    "encode": "fitting",
    "fit": "fitting",
    "from_numpyro": "model",
    "glm": "families.glm",
    "guarantee": "accounting",
    "mixture": "families.mixture",
    "naive_posterior": "posterior.reading",
    "network": "families.network",
    "open_account": "ledger",
    "paid_units": "fitting",
    "read": "posterior.reading",
    "simulated": "fitting",
}

__all__ = [
    "Account",
    "Budget",
    "Categorical",
    "Checkpoint",
    "Guarantee",
    "Model",
    "Numeric",
    "Options",
    "Plan",
    "Posterior",
    "Release",
    "Rows",
    "Schema",
    "Unit",
    "calibrate",
    "choose",
    "encode",
    "fit",
    "from_numpyro",
    "glm",
    "guarantee",
    "mixture",
    "naive_posterior",
    "network",
    "open_account",
    "paid_units",
    "read",
    "simulated",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'discreet' has no attribute {name!r}")
    value = getattr(import_module(f"discreet.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
