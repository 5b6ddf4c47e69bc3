"""The networks: PyG's layers and two relatives, with PyG's parameter names, and stacks of them."""
