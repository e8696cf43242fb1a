"""Training of short-context models with PoSE."""
