"""Atomic file writes, locks and ownership of folders, and the record of the environment."""
