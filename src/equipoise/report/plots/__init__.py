"""Plots: functions that turn tables of numbers into Matplotlib figures."""
