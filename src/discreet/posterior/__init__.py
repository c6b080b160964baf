"""What the answers mean: functions from a Release to draws of the variational optimum φ*, and on to a Posterior."""
