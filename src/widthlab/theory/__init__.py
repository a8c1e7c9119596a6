"""What the papers predict, in float64 numbers; imports nothing else of the package."""
