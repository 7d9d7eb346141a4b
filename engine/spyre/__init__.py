"""spyre."""
