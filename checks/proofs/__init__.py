"""The prover: discharges the obligations of `spec/obligations` with Z3; defines none itself."""
