"""Driver `ec2`.

ec2?image=ami-…&type=m7i.large&user=admin        and what reaches it: key, subnet, group; reach=public|private
ec2?…&identity=/path&config=/path&port=22        as for the `ssh` driver · address=…: another way to it than the cloud's
ec2?…&endpoint=http://…&region=…                 another cloud with the same API · poweroff=no: it does not end itself
"""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.core.errors import Misuse
from dutyfree.core.keyword import check_names
from dutyfree.substrates.ec2.cloud import Cloud, Kind
from dutyfree.substrates.ec2.substrate import CAPABILITIES, Ec2Substrate, Way

_SSH = ("port", "identity", "config", "program")
_OPTIONS = (
    "image", "type", "user", "key", "subnet", "group", "reach", "address", "endpoint", "region", "poweroff", *_SSH,
)  # fmt: skip


class Ec2Driver(Driver):
    """The entry point's object."""

    name = "ec2"
    costs = True
    summary = "a cloud machine for each sandbox: started, reached by ssh, terminated"

    def declared(self) -> list[Capabilities]:
        """For root on the instance."""
        return [CAPABILITIES]

    def probe(self) -> Availability:
        """Whether the account can do it is only known once it is tried, which costs money."""
        return Availability(
            available=False, reason="needs an account and a machine image: ec2?image=ami-…&type=…&user=…",
            enable="dutyfree run -s 'ec2?image=ami-…&type=m7i.large&user=admin' -- true", capabilities=CAPABILITIES,
        )  # fmt: skip

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Nothing is started; what dead owners left is terminated."""
        check_names(options, _OPTIONS, driver=self.name)
        for name in ("image", "type", "user"):
            if not options.get(name):
                raise Misuse("must be given", field=name, driver=self.name)
        for name, choices in (("reach", ("public", "private")), ("poweroff", ("yes", "no"))):
            if options.get(name, choices[0]) not in choices:
                what = f"must be one of {', '.join(choices)}, not {options[name]!r}"
                raise Misuse(what, field=name, driver=self.name)
        cloud = Cloud(options.get("endpoint"), options.get("region"))
        await cloud.sweep()
        kind = Kind(
            image=options["image"], type=options["type"], key=options.get("key"),
            subnet=options.get("subnet"), group=options.get("group"),
        )  # fmt: skip
        way = Way(
            user=options["user"],
            reach="private" if options.get("reach") == "private" else "public",
            address=options.get("address"),
            options={name: options[name] for name in _SSH if name in options},
            power_off=options.get("poweroff", "yes") == "yes",
        )
        return Ec2Substrate(cloud, kind, way)


driver = Ec2Driver()
