"""The paged device: the simulated device without Spyre's rectangles, chunks and padding."""
