"""The runtime: interfaces, driver, replay, streams and clocks. Knows numpy and no JAX."""
