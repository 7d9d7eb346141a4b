"""Differential fuzzing: a target and the reference, step by step, until both are idle.

`cases` draws a configuration and requests, `lockstep` runs them, `compare` says where two records
of a step differ. What is found (`finding`) is made small (`shrink`), written as a file that
replays (`corpus`) and printed (`report`). `campaign` does so many times over on all cores.

A target is anything that has `arrive`, `abort` and `step` and gives `spec.spyre.records.Step`s
(`target`); `subjects` lists those that there are. A file of the corpus that is copied to
`tests/corpus/` is from then on run with every target and every rule.

The rules of the registry judge a target apart from the reference (`Terms.judged`), so that a
defect of both is found, too. Where a rule is known not to hold, `known` says so and why.
"""
