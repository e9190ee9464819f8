"""Benchmarks: each prints JSON with the machine and the versions that its figures belong to."""
