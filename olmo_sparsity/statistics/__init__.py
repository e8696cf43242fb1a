"""From tables to one frame of estimates with intervals."""
