"""Wrong versions of formulas, transitions and decisions, and what notices each of them.

The score says how far the evidence leans on what it judges: a rule that judges with the very
formula that the machine runs does not fall when that formula is wrong.
"""
