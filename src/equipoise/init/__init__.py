"""Initialisation schemes of the paper, applied in one call to any model made of known layers."""
