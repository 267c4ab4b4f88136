"""The disk tier: owned blocks that were used twice, in a file per extent, behind a byte quota and deadlines."""
