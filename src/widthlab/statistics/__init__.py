"""What can be measured of a network: its signals, gradients and tangent kernel."""
