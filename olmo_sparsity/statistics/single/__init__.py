"""What one measurement shows: its numbers, read from the tables, and what follows from them."""
