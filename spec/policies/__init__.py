"""Configurations, formulas and observed states of the schedulers other than Spyre's."""
