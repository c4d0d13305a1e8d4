"""Images: from a name to the directories a sandbox is mounted from, and the store they lie in. For every driver."""
