"""The common vocabulary of all policies: arithmetic, requests, blocks, records, rules."""
