"""The nano-vLLM scheduler as a state machine: block manager, transitions, the step they make up.

Read next to the chapter `spec/chapters/nano_vllm.md`. The running queue is `State.decoding`; nobody
is ever between the queues, so `State.prefilling` is always None.
"""
