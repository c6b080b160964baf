"""discreet."""
