"""Is a posterior honest, and is it sharp? Measured on simulated or public tables, never on private ones."""
