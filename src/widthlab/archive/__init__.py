"""The history of all sweeps: committed, tagged, compared, restored, and reported anew."""
