"""Thin command line tools: arguments in, one call into the packages."""
