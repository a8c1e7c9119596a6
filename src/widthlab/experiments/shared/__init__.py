"""What experiments share: the interface, grids, laws of an architecture, shapes of claims."""
