"""Sandboxes as containers of an engine that speaks the Docker API on a unix socket: what `docker` and `podman` share."""
