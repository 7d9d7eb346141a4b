"""The Spyre engine: scheduler, block manager, serving loop, observer, simulated device."""
