"""One package for each policy, with the four parts that `checks.registry` describes."""
