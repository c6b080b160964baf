import os

import jax
import pytest

os.environ["DISCREET_CACHE"] = os.environ.get("DISCREET_TEST_CACHE", os.path.join(os.path.dirname(__file__), ".cache"))
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key(request):
    """A key made from the test's own name, so that a failure repeats."""
    seed = sum(map(ord, request.node.nodeid)) % 2**31
    print(f"seed {seed}")
    return jax.random.key(seed)
