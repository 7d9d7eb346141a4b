"""Spyre as a machine on numbers that numba compiles: packed states, their successors, their rules.

`names` and `setting` define the numbers of a state and of an instance. `admission`, `machine` and
`pool` are the scheduler, `packing` writes a state into a few words, `moves` computes all
successors, and `codec` converts states from and to those of the reference. Lengths, limits and
conditions are the `formulas` of `spec`, printed from the prover's terms: see
`checks.explore.compiled`.
"""
