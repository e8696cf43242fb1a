"""Recipes: which commands make the results of docs/results.md."""
