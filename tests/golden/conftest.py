import jax
import jax.numpy as jnp
import pytest

from embodied.jax import nets


@pytest.fixture(scope="package", autouse=True)
def _float32():
    """The numbers are in float32; programs run once, so that compiling fast matters most."""
    before, nets.COMPUTE_DTYPE = nets.COMPUTE_DTYPE, jnp.float32
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    nets.COMPUTE_DTYPE = before
