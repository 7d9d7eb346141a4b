"""The harness: one way to run anything, and one comparison for everything that is run.

- `system`: what can be run: `play(case, actions)`; `case`: what is played; `clients`, `script`: the
  actions; `reference`: a machine as a system; `driver`: a driver process as one; `recording` too.
- `comparison` drives two of them, judges (`judging`, `rules_only`) and compares (`comparing`); what
  is wrong is a `finding`, unless it is known (`difference`).
- `campaign` does so on all cores with random cases (`generating`) that are made of `choices`, and
  makes cases small again (`shrinking`); `corpus`, `recording` and `report` keep and show findings.
- `serving` runs a workload, `replaying` a trace.
- `adapter`, `decoding`, `unreported`: what must be known of a policy to understand its drivers.

Nothing here knows a policy: each is asked of the registry, `checks.registry`.
"""
