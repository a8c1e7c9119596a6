"""The parts of a training run: its schedule, its files, resuming, and evaluation."""
