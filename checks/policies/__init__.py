"""A package for each policy, with the four parts that `checks.registry` finds there."""
