"""Numbers and intervals from tables."""
