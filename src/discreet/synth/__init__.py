"""Synthetic tables from a posterior, what is computed on them put together, and how like a public truth they are.

tables = synthesize(posterior, n, m)      each table from one draw of the posterior
save(folder, posterior, n, m)             the same as files, with what one must know to use them
rubin(estimates, variances)               m analyses as one, with honest intervals
utility(tables, truth, schema)            against a PUBLIC or simulated table
"""

from discreet.posterior.predictive import is_naive, synthesize
from discreet.synth.closeness import Closeness, utility
from discreet.synth.pooling import Pooled, read_results, records, rubin
from discreet.synth.writing import LABEL, advice, read_label, save, told

__all__ = [
    "LABEL",
    "Closeness",
    "Pooled",
    "advice",
    "is_naive",
    "read_label",
    "read_results",
    "records",
    "rubin",
    "save",
    "synthesize",
    "told",
    "utility",
]
