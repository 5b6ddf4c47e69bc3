"""Compiled CPU kernels over graphs: NumPy arrays in, NumPy arrays out, without autograd or modules.

No kernel allocates an array of size edges × channels.
"""
