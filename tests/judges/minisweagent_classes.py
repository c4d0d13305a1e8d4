"""A pytest plugin: mini-swe-agent's environment tests, unmodified, with our class under each of their classes' names.

Their images are not here: whatever image a test names, it gets this machine's own programs.
"""

import minisweagent.environments.docker
import minisweagent.environments.extra.bubblewrap
import minisweagent.environments.local

from dutyfree.adapters.minisweagent import Environment


class Judged(Environment):
    def __init__(self, **settings):
        super().__init__(**{**settings, "image": "host"})


minisweagent.environments.docker.DockerEnvironment = Judged
minisweagent.environments.extra.bubblewrap.BubblewrapEnvironment = Judged
minisweagent.environments.local.LocalEnvironment = Judged
