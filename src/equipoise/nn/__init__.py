"""Graph layers on fused kernels, with PyG's parameter names, and stacks of them."""
