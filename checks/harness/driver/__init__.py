"""Driver processes: the line protocol, the process, and a driver as a system."""
