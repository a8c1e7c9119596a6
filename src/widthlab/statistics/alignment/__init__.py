"""Effective alignment dimension: activation gradients, what they certify, and whether it is so."""
