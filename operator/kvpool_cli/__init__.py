"""The `kvpool` command, top of the house: manifests in and out, and what a pool's agents say of
themselves."""
