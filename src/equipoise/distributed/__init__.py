"""Training on one graph across processes and machines: exchange of boundary rows, summed gradients."""
