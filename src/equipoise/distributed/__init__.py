"""Training on one graph across processes and machines: partitioning, the parts as files, exchange of boundary rows."""
