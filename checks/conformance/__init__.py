"""Released schedulers held against the reference, through drivers in environments of their own."""
