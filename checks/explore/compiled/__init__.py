"""The explorer's fast gear: the search of a compiled machine whose states are packed numbers.

A state is a few words of 64 bits. Functions compiled by numba compute its successors, and an array
with a hash table holds the states: a hundred times as many states a second as with the reference.
The policy's package `compiled` has a `CompiledModel`, which alone defines the layout of the words.
Some rules are judged in numbers on every edge, all others on a sample of states (`search`).

The compiled machine is derived from the specification:

- Every length, limit and condition is a formula of `spec`, called with the prover's terms and
  printed (`printing`). The compiled code is the term that is proven, not a second copy.
- Phases, queues and blocks, where a step moves rows and blocks, are written a second time as plain
  functions over an array of numbers. They can be run and debugged as Python.
- `agreement` compares the two machines: the same state must have the same successors by the same
  actions. On small instances every state is compared; then the two graphs are equal, and a result
  for one machine holds for the other.

Two designs were measured on one core, for the admission `exact`:

- A whole step as one straight line of terms, with block sizes as constants: 0.14 microseconds for
  five requests, but without pool, hits, pausing and preemption, each of which would add conditions
  to every term; compiling takes 12 seconds for each instance.
- Formulas as terms and control flow as code, the design in use: the whole machine, 0.5 microseconds
  an edge with packing, naming and hashing; compiled once for all instances, in half a minute.

The comparison finds a graph in which one number of one request is wrong. It does not find a fault
that both machines share, or a wrong formula: the rules find those.
"""

from importlib.util import find_spec

IS_INSTALLED = find_spec("numba") is not None  # with which the functions are compiled
