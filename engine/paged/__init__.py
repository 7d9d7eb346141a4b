"""The paged device: a simulated device for ragged batches with block tables and slot mappings."""
