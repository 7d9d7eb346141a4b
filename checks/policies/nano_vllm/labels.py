"""What is counted of nano-vLLM's steps."""

from checks.policies.labels import STEPS, Labels, named_actions

LABELS = Labels(
    actions=named_actions(
        *STEPS,
        *("admit", "prefix_hit", "allocate", "prefill", "decode", "preempt", "finish"),
        refusals=("NANO-ADM-1", "NANO-ADM-2", "NANO-ADM-3"),
        phases=("waiting", "running"),
    )
)
