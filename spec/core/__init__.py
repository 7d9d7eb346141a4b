"""What every policy's claims are written with: arithmetic, requests, blocks, records, rules."""
