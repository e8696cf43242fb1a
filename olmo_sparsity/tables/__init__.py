"""What is written and read: schemas, part files, merging."""
