"""What chooses: predictions and losses that scores are made of, and what selectors choose in windows."""
