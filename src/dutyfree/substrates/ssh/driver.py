"""Driver `ssh`.

ssh?host=user@machine                          as `ssh user@machine` would go, but never asking for a password
ssh?host=…&port=2222&identity=/path/to/key     · config=/path: another configuration file · program=/path: another ssh
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.substrates.login.client import Client
from dutyfree.substrates.login.substrate import CAPABILITIES, open_ssh


class SshDriver(Driver):
    """The entry point's object."""

    name = "ssh"
    summary = "a Linux machine that is there already, by ssh: our agent on one stream per sandbox"

    def declared(self) -> list[Capabilities]:
        """For root on the other machine."""
        return [CAPABILITIES]

    def probe(self) -> Availability:
        """The program is there; whether a machine answers is only known once one is named."""
        if shutil.which("ssh") is None:
            return Availability(available=False, reason="there is no ssh", enable="apt-get install -y openssh-client")
        reason = "needs a machine: ssh?host=user@machine"
        return Availability(
            available=False, reason=reason, enable="dutyfree run -s 'ssh?host=user@machine' -- true",
            capabilities=CAPABILITIES,
        )  # fmt: skip

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Log in, look, install the agent."""
        return await open_ssh(Client.open(options))


driver = SshDriver()
