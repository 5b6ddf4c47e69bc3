"""Experiments: specifications of runs, sweeps over them on one machine or a cluster, and the store of results."""
