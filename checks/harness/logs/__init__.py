"""Logs of running servers: read, judged, compared with the reference, cut to cases."""
