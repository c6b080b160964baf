import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy import clipping as oracle

from discreet.mechanism.clipping import GRID, bounded_sum, clip_to_grid, privatize


def residual(weights, row):
    return 0.5 * (row["y"] - jnp.dot(weights, row["x"])) ** 2


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(64, 5)), "y": 3 * rng.normal(size=64)}


@pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")  # the oracle's own
@pytest.mark.parametrize("clip_norm", [0.1, 2.0, 1e3])
def test_bounded_sum_agrees_with_an_independent_library(rows, clip_norm):
    """Equal to jax-privacy's sum of clipped gradients within the rounding of 64 rows to the grid."""
    with jax.enable_x64(True):
        weights = jnp.arange(5.0) / 5
        ours = bounded_sum(
            jax.grad(residual), weights, jax.tree.map(jnp.asarray, rows), jnp.ones(64), jnp.array(clip_norm)
        )
        theirs = oracle.clipped_grad(residual, l2_clip_norm=clip_norm, keep_batch_dim=False)(weights, rows)
        np.testing.assert_allclose(ours * clip_norm / GRID, theirs, atol=64 * 2 * clip_norm / GRID)


@pytest.mark.parametrize("clip_norm", [0.1, 2.0, 1e3])
def test_bounded_sum_of_order_one_is_the_sum_of_rows_shrunk_to_their_l1_norm(rows, clip_norm):
    """Against the formula in NumPy, within the rounding of 64 rows and the half unit per coordinate of the clip."""
    weights = np.arange(5.0) / 5
    gradients = -(rows["y"] - rows["x"] @ weights)[:, None] * rows["x"]
    expected = (gradients * np.minimum(1, clip_norm / np.abs(gradients).sum(1))[:, None]).sum(0)
    with jax.enable_x64(True):
        columns = jax.tree.map(jnp.asarray, rows)
        ours = bounded_sum(jax.grad(residual), jnp.asarray(weights), columns, jnp.ones(64), jnp.array(clip_norm), 1)
    np.testing.assert_allclose(np.asarray(ours) * clip_norm / GRID, expected, atol=64 * 3 * clip_norm / GRID)


@pytest.mark.parametrize("order", [1, 2])
def test_a_row_within_the_clip_is_only_rounded(order):
    with jax.enable_x64(True):
        values = np.array([[0.25, -0.5, 0.125], [0.0, 0.0, 0.0], [1 / 3, 1 / 7, -1 / 9]])
        found = np.asarray(clip_to_grid(values, 1.0, order))
    np.testing.assert_array_equal(found, np.round(values * GRID))


def test_what_cannot_be_clipped_is_refused():
    with pytest.raises(ValueError, match="order=3 must be 1 or 2"):
        clip_to_grid(jnp.zeros((1, 2)), jnp.array(1.0), 3)
    with pytest.raises(ValueError, match="1048577 numbers"):
        jax.eval_shape(lambda values: clip_to_grid(values, jnp.array(1.0), 1), jnp.zeros((1, 2**20 + 1)))


def test_padding_adds_nothing_whatever_it_holds(rows):
    with jax.enable_x64(True):
        weights, clip = jnp.arange(5.0) / 5, jnp.array(1.0)
        padded = {
            name: jnp.concatenate([jnp.asarray(c), jnp.full((9, *c.shape[1:]), jnp.nan)]) for name, c in rows.items()
        }
        for filler in (jnp.nan, 1e30):
            padded = {name: padded[name].at[64:].set(filler) for name in padded}
            mask = jnp.concatenate([jnp.ones(64), jnp.zeros(9)])
            short = bounded_sum(jax.grad(residual), weights, jax.tree.map(jnp.asarray, rows), jnp.ones(64), clip)
            np.testing.assert_array_equal(bounded_sum(jax.grad(residual), weights, padded, mask, clip), short)


def test_sums_do_not_depend_on_the_order_of_rows(rows):
    """Whole numbers add exactly: a permutation changes no bit."""
    with jax.enable_x64(True):
        weights, order = jnp.arange(5.0), np.random.default_rng(1).permutation(64)
        total = [
            bounded_sum(
                jax.grad(residual),
                weights,
                {n: jnp.asarray(c[o]) for n, c in rows.items()},
                jnp.ones(64),
                jnp.array(0.3),
            )
            for o in (np.arange(64), order)
        ]
        np.testing.assert_array_equal(*total)


def test_answers_lie_on_the_grid():
    """Noise is rounded to whole units too, so no answer betrays the fraction of a total."""
    with jax.enable_x64(True):
        noise = jax.random.normal(jax.random.key(0), (1000,))
        answer = privatize(jnp.full(1000, 12345.0), noise, jnp.array(37.3), jnp.array(2.0))
        units = answer * GRID / 2.0
        np.testing.assert_array_equal(units, jnp.round(units))


def test_both_steps_work_under_vmap(rows):
    """Studies run many tables at once: the batched result equals the single ones."""
    with jax.enable_x64(True):
        tables = {name: jnp.stack([column, column[::-1] * 0.5]) for name, column in rows.items()}

        def one(weights, table):
            total = bounded_sum(jax.grad(residual), weights, table, jnp.ones(64), jnp.array(1.0))
            return privatize(total, jnp.ones(5), jnp.array(3.0), jnp.array(1.0))

        weights = jnp.stack([jnp.arange(5.0), jnp.ones(5)])
        both = jax.vmap(one)(weights, tables)
        for index in range(2):
            single = jax.jit(one)(weights[index], {name: column[index] for name, column in tables.items()})
            np.testing.assert_array_equal(both[index], single)
