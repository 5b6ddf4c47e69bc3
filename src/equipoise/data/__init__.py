"""The data sets: nine real graphs, whose files are verified by checksum, and a synthetic one."""
