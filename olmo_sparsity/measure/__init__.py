"""Measurements of the influence of tokens on a model.

From a window to a row of a table: ``influence`` -> ``parts`` -> ``evaluate`` -> ``scores`` -> ``engine``.
"""
