"""Files that appear whole, folders that are locked and owned, the record of the environment."""
