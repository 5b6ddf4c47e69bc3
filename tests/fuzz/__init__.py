"""Fuzzing: random inputs, most of them malformed, tried in a process of their own so that a crash counts.

``python -m tests.fuzz`` tries all targets and prints the number of inputs of each. The only outcomes allowed are a
named error and a right result.
"""
