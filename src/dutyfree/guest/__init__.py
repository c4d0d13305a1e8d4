"""The wire protocol and the host-side client of the guest agent. Knows no driver: it is given a connected stream."""
