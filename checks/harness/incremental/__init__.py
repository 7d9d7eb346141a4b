"""Judging a long run by what each step changed, with the answers of plain judging."""
