"""What a run leaves for others to read: traces, ITF, timelines; each whole or not there."""
