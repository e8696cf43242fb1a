"""Results for people: terminal, pages."""
