"""The vLLM V0 scheduler as a state machine: block manager, transitions, and the step.

Read next to the chapter `spec/chapters/vllm_v0.md`. `transitions` holds what can happen to a group,
`block_manager` what it needs of GPU and CPU blocks; `step` has the two strategies, which take from
the three `queues` and preempt (`preemption`) within the budget (`tokens`); `results` is what comes
of it.
"""
