"""OLMo with position IDs, its compact path, its checkpoints, and devices."""
