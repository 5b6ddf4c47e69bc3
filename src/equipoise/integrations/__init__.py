"""The recorder in other training loops and dashboards. Each module needs its own optional dependency."""
