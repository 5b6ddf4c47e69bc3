"""How fast, how large: this project against PyG and DGL, and the path that each layer of a model takes."""
