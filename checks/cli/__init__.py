"""The subcommands of `lockstep`, a module each."""
