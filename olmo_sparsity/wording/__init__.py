"""Sentences about results, made from the numbers of ``statistics``. Every output takes its words from here."""
