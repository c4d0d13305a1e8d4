"""A pytest plugin: SWE-ReX's own server, unmodified, in front of our runtime, for its tests of everything on the wire."""

import os

import swerex.server

from dutyfree.adapters.swerex import Runtime

swerex.server.runtime = Runtime(substrate=os.environ["DUTYFREE_JUDGE_SUBSTRATE"])
