"""Obligations, by policy, and the prover that discharges them with Z3."""
