"""Views of a run for a reader: pages, tables, the live reference."""
