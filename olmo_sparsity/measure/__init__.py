"""Measurements on a trained model: influence, and accuracy on synthetic tasks.

From a window to a row of a table: ``influence`` -> ``parts`` -> ``windows_measured`` -> ``scores`` -> ``engine``.
"""
