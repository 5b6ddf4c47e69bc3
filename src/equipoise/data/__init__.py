"""The data sets: nine real graphs, checked file by file, and one that is made up from a seed."""
