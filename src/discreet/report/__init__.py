"""What people see of a fit: a forest plot, one self-contained page, and the folder of a run."""
