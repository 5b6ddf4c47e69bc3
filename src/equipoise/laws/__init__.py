"""The theory: rescaling laws of any network, found, checked, explained and used. Needs torch and nothing else."""
