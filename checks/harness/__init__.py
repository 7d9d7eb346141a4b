"""The harness runs systems under test, judges their steps and compares them with the reference.

- `system`: the interface of a system under test, `play(case, actions)`. `case`: the configuration
  and requests of an episode. `clients`, `script`: its actions. Systems are the `reference`, the
  engine, a `driver` process and a `recording`.
- `comparison` plays a case on a system and on the reference, judges the steps (`judging`,
  `rules_only`) and compares them (`comparing`). An error is a `finding`, unless it is a known
  `difference`.
- `campaign` compares random cases (`generating`, drawn from `choices`) on all cores and shrinks
  those that fail (`shrinking`). `corpus`, `recording` and `report` store and print findings.
- `serving` runs a workload, `replaying` a trace.
- `adapter`, `decoding`, `unreported`: how the drivers of a policy are understood.

Nothing here imports a policy: `checks.registry` finds it by name.
"""
