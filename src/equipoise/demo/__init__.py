"""The demonstration behind ``equipoise demo``: what the laws are, and what they do to training."""
