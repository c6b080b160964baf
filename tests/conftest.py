import os

import jax
import pytest

os.environ.setdefault("NPROC", "1")  # as the command line has it; read when JAX starts its backend
os.environ["DISCREET_CACHE"] = os.environ.get("DISCREET_TEST_CACHE", os.path.join(os.path.dirname(__file__), ".cache"))
jax.config.update("jax_numpy_rank_promotion", "raise")
# The same small programs are compiled again and again by tests and the processes they start: keep them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(os.environ["DISCREET_CACHE"], "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture
def key(request):
    """A key made from the test's own name, so that a failure repeats."""
    seed = sum(map(ord, request.node.nodeid)) % 2**31
    print(f"seed {seed}")
    return jax.random.key(seed)


@pytest.fixture(scope="module")
def blocks_one_by_one():
    """A chunk for each block, so that small runs can be cut short between two."""
    from discreet.mechanism import loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHUNK_WORK", 1)
        yield
