"""Evidence: the explorer, the prover, the fuzzer, drivers for releases, reports, and the CLI."""
