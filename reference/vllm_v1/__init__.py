"""The vLLM V1 scheduler as a state machine: the KV cache, transitions, and the step.

Read next to the chapter `spec/chapters/vllm_v1.md`. `transitions` holds what can happen to a
request, `kv_cache` what it needs of the block pool, `step` which of it a scheduler step does.
"""
