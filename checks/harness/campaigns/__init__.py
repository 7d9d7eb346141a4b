"""Many compared episodes: campaigns, worlds, shrinking, recordings, reports."""
