"""OCI images: from a layout, an archive, an engine or a registry into the store, layer by layer."""
