"""What is shown to people: figures, tables, pages."""
