"""The plugin of pytest: nothing yet."""
