"""The recorder inside other people's training loops and dashboards; each file needs an extra of its own."""
