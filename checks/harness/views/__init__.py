"""What a reader sees of a run: pages, tables, the live reference."""
