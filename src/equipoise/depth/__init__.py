"""Checks in short runs whether a model will train as it gets deeper or wider."""
