"""What can be measured of a network: its signals, gradients, tangent kernel and alignment."""
