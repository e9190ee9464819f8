import jax.numpy as jnp
import pytest

from embodied.jax import nets


@pytest.fixture(scope="package", autouse=True)
def _float32():
    before, nets.COMPUTE_DTYPE = nets.COMPUTE_DTYPE, jnp.float32
    yield
    nets.COMPUTE_DTYPE = before
