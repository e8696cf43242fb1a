"""What is visible: visible sets as rows, masks and gates, the forward passes over them, and their losses."""
