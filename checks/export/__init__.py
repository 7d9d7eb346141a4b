"""Output formats: traces, ITF, timelines, plots and pages; no file is left half written."""
