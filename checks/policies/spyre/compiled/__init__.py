"""Spyre as a machine on numbers that numba compiles: packed states, their successors, their rules.

`names` and `setting` say what a state and an instance are in numbers; `admission`, `machine` and
`pool` are the scheduler, `packing` the few words that a state is kept in, `moves` all its
successors, `codec` the way to and from the states of the reference. Lengths, limits and conditions
are the `formulas` of `spec`, printed from the prover's terms: see `checks.explore.compiled`.
"""
