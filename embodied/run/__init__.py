"""Loops that train and evaluate agents, and the parts that they share."""
