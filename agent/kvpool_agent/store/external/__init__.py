"""The external store: blocks outside all of the pool's pods, as objects under names, sealed where there are keys."""
