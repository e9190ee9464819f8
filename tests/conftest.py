"""Settings for all tests, made before JAX starts, and for the processes that they start."""

import os

# Tests run many small programs once, so that compiling them fast matters more than running fast.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
