"""Opacus on PyTorch: per-sample gradients by GradSampleModule, clip and noise by DPOptimizer, a loop in Python.

Poisson batches drawn by hand with NumPy: Opacus's own loader collates row by row, and its sampler passes lists. The
per-sample gradient is registered as Opacus recommends for a custom layer, twice as fast as its functorch mode. The
public gradient joins after the noise, by the optimiser's step hook. One thread or all: the warm-up keeps the faster.
"""

import os
from functools import cache, partial

import numpy as np
from _common import (
    CLIP_NORM,
    FEATURES,
    LEARNING_RATE,
    NOISE_MULTIPLIER,
    ROWS,
    START_MEAN,
    START_SCALE,
    seconds,
    serve,
    starting,
    table,
)

with starting("opacus_sgd"):
    import torch
    from opacus.grad_sample import GradSampleModule, register_grad_sampler
    from opacus.optimizers import DPOptimizer
    from torch.nn.functional import binary_cross_entropy_with_logits, softplus


class Logits(torch.nn.Module):
    """x·z_k for each row and draw."""

    def __init__(self, draws):
        super().__init__()
        self.mean = torch.nn.Parameter(torch.full((FEATURES,), START_MEAN))
        self.scale = torch.nn.Parameter(torch.full((FEATURES,), START_SCALE))
        self.eta = torch.empty(draws, FEATURES)

    def forward(self, features):
        """Logits (rows, draws)."""
        return features @ (self.mean + softplus(self.scale) * self.eta).T

    def add_public_gradient(self, rate):
        """Add rate·∇(−mean_k log p(z_k) − entropy) to the gradients."""
        with torch.no_grad():
            sd = softplus(self.scale)
            draws = self.mean + sd * self.eta
            slope = ((draws * self.eta).mean(0) - 1 / sd) * torch.sigmoid(self.scale)
            self.mean.grad.add_(draws.mean(0), alpha=rate)
            self.scale.grad.add_(slope, alpha=rate)


@register_grad_sampler(Logits)
def row_gradients(module, activations, slopes):
    """Each row's gradients, from the slopes of its loss in its logits."""
    (features,) = activations
    return {
        module.mean: features * slopes.sum(1, keepdim=True),
        module.scale: features * (slopes @ (module.eta * torch.sigmoid(module.scale))),
    }


def optimiser(module, rate):
    """Opacus's: clips, sums, adds noise, then the public gradient, then a step of SGD."""
    private = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=None,
        loss_reduction="sum",
    )
    private.attach_step_hook(lambda _: module.add_public_gradient(rate))
    return private


def poisson_batch(rng, rate):
    """Indices of a Poisson batch."""
    return torch.from_numpy(rng.choice(ROWS, rng.binomial(ROWS, rate), replace=False, shuffle=False))


def run(seed, rate, draws, steps):
    """φ after the steps."""
    torch.manual_seed(seed)
    rng, (features, labels) = np.random.default_rng(seed), map(torch.from_numpy, table())
    module = Logits(draws)
    network = GradSampleModule(module, loss_reduction="sum")
    private = optimiser(module, rate)
    for _ in range(steps):
        indices = poisson_batch(rng, rate)
        module.eta.normal_()
        private.zero_grad(set_to_none=True)
        logits = network(features.index_select(0, indices))
        truth = labels.index_select(0, indices)[:, None].expand_as(logits)
        (binary_cross_entropy_with_logits(logits, truth, reduction="sum") / draws).backward()
        private.step()
    return module.mean.detach(), module.scale.detach()


@cache
def best_threads(rate, draws):
    """One or all, by the better of two short trials each."""

    def trial(threads):
        torch.set_num_threads(threads)
        return min(seconds(partial(run, rate=rate, draws=draws, steps=30)) for _ in range(2))

    return min((1, os.cpu_count()), key=trial)


def time_steps(rate, draws, steps):
    """Seconds of the steps."""
    torch.set_num_threads(best_threads(rate, draws))
    return seconds(partial(run, rate=rate, draws=draws, steps=steps))


if __name__ == "__main__":
    serve("opacus_sgd", ["opacus", "torch", "numpy"], time_steps)
