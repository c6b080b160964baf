"""The only package that sees rows. What leaves it has been clipped and noised."""
