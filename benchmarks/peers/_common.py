"""The problem every peer solves, and how a worker is asked for its speed.

Logistic regression of 30 000 rows on 100 features, prior w ~ N(0, I), approximated by N(m, diag(softplus(s)²)). A step
takes K draws η_k that all rows share, and at z_k = m + softplus(s)·η_k moves φ = (m, s) by SGD along

    Σ clip(∇φ −mean_k log p(y | x, z_k)) + noise + rate·∇φ (−mean_k log p(z_k) − entropy)

where the sum is over a Poisson batch, each row's 200 numbers are clipped together, and the noise is Gaussian with
standard deviation CLIP_NORM·NOISE_MULTIPLIER. All in float32. A worker says in its docstring where it departs.

A worker prints {"peer": name, "versions": {...}}, or {"peer": name, "error": why} and ends. Then it answers each line
{"rate": 0.01, "draws": 1, "steps": 1000} of its input with {"seconds": time of the steps without compilation}, or with
{"error": why}.
"""

import json
import math
import os
import sys
import time
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version

import numpy as np

ROWS, FEATURES = 30_000, 100
START_MEAN, START_SCALE = 0.0, -4.0
CLIP_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 2.0, 2.0, 1e-5


@cache
def table():
    """Features (ROWS, FEATURES) and labels (ROWS,), float32."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, FEATURES)) / 10
    weights = rng.standard_normal(FEATURES)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(-features @ weights))
    return features.astype(np.float32), labels.astype(np.float32)


def batch_limit(rate):
    """Room for a Poisson batch: five standard deviations above its mean."""
    return min(ROWS, math.ceil(ROWS * rate + 5 * math.sqrt(ROWS * rate * (1 - rate))))


def seconds(run):
    """Wall time of `run(seed)`, which returns when its result is there."""
    began = time.perf_counter()
    run(1)
    return time.perf_counter() - began


@contextmanager
def starting(name):
    """Around imports and set-up: a failure is told in one line, and ends the worker."""
    _answers()
    try:
        yield
    except Exception as error:
        _say({"peer": name, "error": _one_line(error)})
        sys.exit(0)


def serve(name, packages, time_steps):
    """Say who is there, then answer requests with `time_steps(rate, draws, steps)`; a new one is run once before."""
    with starting(name):
        versions = {package: version(package) for package in packages}
    _say({"peer": name, "versions": versions})
    warm = set()
    for line in sys.stdin:
        request = json.loads(line)
        asked = request["rate"], request["draws"], request["steps"]
        try:
            if asked not in warm:
                time_steps(*asked)
                warm.add(asked)
            _say({"seconds": time_steps(*asked)})
        except Exception as error:
            _say({"error": _one_line(error)})


def _one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())


def _say(answer):
    print(json.dumps(answer), file=_answers(), flush=True)


@cache
def _answers():
    """Standard output, kept for answers: from here on whatever else is printed goes to standard error."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream
