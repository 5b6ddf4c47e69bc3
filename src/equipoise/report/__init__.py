"""Reports on experiments: summaries, tables, judged claims, figures, and the HTML page."""
