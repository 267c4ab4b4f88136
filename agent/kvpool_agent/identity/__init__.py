"""This member's own identity: where its certificate comes from, how it stays valid, and what is told of it."""
