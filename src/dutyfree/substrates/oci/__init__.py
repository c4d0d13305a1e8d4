"""Sandboxes as OCI bundles handed straight to a runtime program, without an engine: what `runc` and `gvisor` share."""
