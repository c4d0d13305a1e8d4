"""Sandboxes as containers: engines that speak the Docker API (`docker`, `podman`) and OCI runtimes."""
