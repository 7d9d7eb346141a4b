"""The nano-vLLM scheduler as a state machine: block manager, transitions, the step they make up.

Read next to the chapter `spec/chapters/nano_vllm.md`.
"""
