"""The allow-list of `Egress`: what it takes, what it allows, and which addresses no name leads to."""

import ipaddress

import pytest

import dutyfree
from dutyfree.core.egress import host_name, literal, special


def allowed(allow, address, port=443, named=False):
    return dutyfree.Egress(allow=allow).allows_address(ipaddress.ip_address(address), port, named=named)


@pytest.mark.parametrize(
    ("rule", "name", "port", "expected"),
    [
        ("example.org:443", "example.org", 443, True),
        ("example.org:443", "example.org", 80, False),
        ("example.org:*", "example.org", 8080, True),
        ("example.org:443", "files.example.org", 443, False),
        ("Example.org.:443", "example.org", 443, True),
        ("*.example.com:443", "a.b.example.com", 443, True),
        ("*.example.com:443", "example.com", 443, False),
        ("*.example.com:443", "evilexample.com", 443, False),
        ("10.0.0.5:80", "10.0.0.5", 80, False),
    ],
)
def test_names_match_whole_labels_and_their_port(rule, name, port, expected):
    assert dutyfree.Egress(allow=[rule]).allows_name(name, port) is expected


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "169.254.169.254", "10.0.0.1", "172.17.0.1", "192.168.1.1", "100.100.100.200", "0.0.0.0", "224.0.0.1", "::1", "::",
        "fd00:ec2::254", "fe80::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "::7f00:1", "255.255.255.255",
        "168.63.129.16", "192.0.0.192", "192.0.0.9", "192.88.99.1", "198.19.0.1", "240.0.0.1", "239.255.255.250",
        "fec0::a9fe:a9fe", "5f00::1", "100::1", "100:0:0:1::1", "64:ff9b:1::a9fe:a9fe", "2001:2::1", "2001:20::1", "3fff::1", "4000::1",
        "2600:1:2:3:0:5efe:a9fe:a9fe", "2600:1:2:3:200:5efe:a9fe:a9fe",
    ],
)  # fmt: skip
def test_no_name_leads_to_a_special_address(address):
    assert not allowed(["anything.example:443", "*.example:*"], address, named=True)
    assert not allowed(["0.0.0.0/0:443", "::/0:443"], address)


def test_a_special_address_is_allowed_by_naming_it_or_a_special_range():
    assert allowed(["10.0.0.5:443"], "10.0.0.5")
    assert allowed(["10.0.0.0/8:443"], "10.1.2.3", named=True)
    assert allowed(["[fd00::5]:443"], "fd00::5")
    assert allowed(["127.0.0.1:443"], "::ffff:127.0.0.1")
    assert not allowed(["10.0.0.5:443"], "10.0.0.5", port=80)
    assert not allowed(["10.0.0.0/16:443"], "10.1.0.1")
    assert allowed(["168.63.129.16:443"], "168.63.129.16")
    assert not allowed(["168.63.0.0/16:443", "192.0.0.0/16:443"], "168.63.129.16")
    assert not allowed(["192.0.0.0/16:443"], "192.0.0.192")


def test_an_ordinary_address_needs_a_name_or_a_range():
    assert allowed(["example.com:443"], "93.184.216.34", named=True)
    assert allowed(["93.184.216.0/24:443"], "93.184.216.34")
    assert not allowed(["example.com:443"], "93.184.216.34")


@pytest.mark.parametrize(
    "entry",
    ["example.org", "example.org:", ":443", "example.org:0", "example.org:65536", "example.org:http", "a b:1", "*:443", "a.*.b:443", "10.0.0.1/8:443", "1.2.3:80", 7, {}, "http://x:80"],
)  # fmt: skip
def test_what_is_no_rule_is_refused(entry):
    with pytest.raises(dutyfree.Misuse, match=r"network\.allow"):
        dutyfree.Egress(allow=[entry])


def test_one_string_is_no_list():
    with pytest.raises(dutyfree.Misuse, match=r"network\.allow"):
        dutyfree.Egress(allow="example.org:443")


def test_a_policy_is_a_value():
    one, two = (dutyfree.Egress(allow=["example.org:443"]) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert dutyfree.Spec(network=one) == dutyfree.Spec(network=two)


def test_a_driver_without_it_refuses_it():
    from dutyfree.core.contract import Capabilities
    from dutyfree.driver.offer import check_offered

    spec = dutyfree.Spec(network=dutyfree.Egress(allow=[]))
    with pytest.raises(dutyfree.Unsupported, match="Egress"):
        check_offered(
            spec,
            dutyfree.Egress(allow=[]),
            Capabilities(
                isolation="namespace", dispatch="api", networks=frozenset({"none"}), storages=frozenset({"memory"})
            ),
            driver="x",
        )


def test_names_and_literals_are_told_apart():
    assert host_name("Example.org.") == "example.org"
    assert host_name("a\0b") is None
    assert host_name("*.x") is None
    assert host_name("x" * 300) is None
    assert literal("[::1]") == ipaddress.ip_address("::1")
    assert literal("0x7f.1") is None
    assert literal("fe80::1%eth0") is None
    assert special(ipaddress.ip_address("127.0.0.1"))
    for ordinary in ("1.1.1.1", "168.63.129.17", "192.0.1.1", "2606:4700:4700::1111", "2001:4860:4860::8888"):
        assert not special(ipaddress.ip_address(ordinary))
