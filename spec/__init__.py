"""Claims: the arithmetic, configuration, rules and invariants, and the chapters people read."""
