"""Estimates with their intervals: bootstrap over documents, t intervals over seeds, lines."""
