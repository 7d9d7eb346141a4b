"""The nano-vLLM scheduler as a state machine: block manager, transitions, and their step.

Read next to the chapter `spec/chapters/nano_vllm.md`.
"""
