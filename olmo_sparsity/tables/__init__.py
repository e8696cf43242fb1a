"""Result tables: schemas, part files, checked reading, and merging."""
