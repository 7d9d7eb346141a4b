"""The Spyre scheduler as a state machine: transitions, admission, and the step.

Read next to the chapter `spec/chapters/spyre.md`. `transitions` holds what can happen to a
request, `admission` what can keep it from happening, `step` which of it a scheduler step does.
"""
