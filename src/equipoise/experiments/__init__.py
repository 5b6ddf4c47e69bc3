"""Experiments: what a run is made of, the paper's tables and figures as files, sweeps over them, and their results."""
