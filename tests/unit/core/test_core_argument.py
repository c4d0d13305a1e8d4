"""What fuzzers passed as arguments, and what must come of it: `Misuse` that names the field."""

import pytest

from dutyfree.core.egress import Egress
from dutyfree.core.errors import Misuse
from dutyfree.core.spec import Limits, Spec
from dutyfree.reward.select import AllowList
from dutyfree.substrates.registry import find
from dutyfree.warm.settings import Settings

HUGE = 1 << 4000


@pytest.mark.parametrize("allow", [5, None, b"x:1", {"a:1": 1}, "example.org:443", ["example.org:" + "9" * 5000]])
def test_an_allow_list_that_is_no_list_of_hosts_is_misuse(allow):
    with pytest.raises(Misuse, match=r"network\.allow"):
        Egress(allow=allow)


def test_a_number_too_large_for_a_float_is_misuse():
    with pytest.raises(Misuse, match="cpus"):
        Limits(cpus=HUGE)
    with pytest.raises(Misuse, match="lifetime_s"):
        Spec(lifetime_s=-HUGE)


@pytest.mark.parametrize("name", ["...:x", ".a:x", "a.b:", "", "?", "a?b"])
def test_a_name_that_names_no_driver_is_misuse(name):
    with pytest.raises(Misuse, match="name"):
        find(name)


@pytest.mark.parametrize("patterns", [5, None, b"/x", "/x"])
def test_patterns_that_are_no_list_are_misuse(patterns):
    with pytest.raises(Misuse, match="allow"):
        AllowList(patterns)


@pytest.mark.parametrize(
    ("field", "value"), [("memory_bytes", "8G"), ("memory_bytes", 1.5), ("wait_s", None), ("wait_s", "1")]
)
def test_a_setting_of_the_wrong_type_is_misuse(field, value):
    with pytest.raises(Misuse, match=field):
        Settings(**{field: value})
