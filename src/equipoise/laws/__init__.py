"""Rescaling laws of neural networks: discovery, verification, explanation and rebalancing. Depends on torch only."""
