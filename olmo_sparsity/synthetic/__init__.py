"""Synthetic tasks whose dependencies are known: generators, position IDs, training data and evaluation."""
