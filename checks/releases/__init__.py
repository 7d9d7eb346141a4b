"""Released schedulers: environments, surveys, bisections, reports, verdicts on record."""
