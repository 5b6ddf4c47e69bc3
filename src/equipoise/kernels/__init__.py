"""Compiled loops over graphs: arrays in, arrays out; no autograd, no modules. Nothing of size edges × width is made."""
