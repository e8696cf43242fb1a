"""Text becomes tokens, and tokens become windows."""
