"""The explorer's fast gear: a machine on packed numbers, its graph, and what makes it evidence.

A state is a few words of 64 bits, its successors are worked out by functions that numba compiles,
and states are kept in an array with a hash table over it: a hundred times as many a second as the
reference takes. Only a policy knows what stands in the words: its package `compiled` has a
`CompiledModel`. Some rules are judged in numbers on every edge, all others on a sample (`search`).

How the compiled machine comes of the one description that there is, the specification:

- Every length, limit and condition is a formula of `spec`, called with the prover's terms and
  printed (`printing`): what is compiled is the very term that is proven. It is not written again.
- Phases, queues and blocks, in which a step consists of moving things, are written again as plain
  functions over an array of numbers. They can be run and debugged as Python.
- `agreement` compares the two machines: from the same state the same successors, each by the same
  action. On small instances that is done from every state; then the graphs are the same, state for
  state and edge for edge, and what the one shows is true of the other.

Measured before this was chosen, on one core, for the admission `exact`:

- A whole step as one straight line of terms, with the sizes of blocks as constants: 0.14
  microseconds for five requests, but without pool, hits, pausing and preemption, all of which would
  be conditions on everything; compiling takes 12 seconds for each instance.
- Formulas as terms and control as code: the whole machine, 0.5 microseconds an edge with packing,
  naming and hashing; compiled once, in half a minute, for every instance there is.

A graph in which one number is wrong for one request is caught by the comparison; a fault in both
machines, or in a formula, is not: that is what rules are for.
"""

from importlib.util import find_spec

IS_INSTALLED = find_spec("numba") is not None  # with which the functions are compiled
