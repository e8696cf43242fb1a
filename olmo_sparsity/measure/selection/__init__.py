"""What chooses: predictions and losses that scores are made of, screening, and what selectors choose in windows."""
