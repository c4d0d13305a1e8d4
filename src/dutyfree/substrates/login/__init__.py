"""Machines that one can log in to by ssh, as sandboxes: what the drivers `ssh` and `ec2` share."""
