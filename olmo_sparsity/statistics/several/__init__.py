"""Measurements side by side: differences, seeds of training, context curves, lengths."""
