"""Every kind of address that a call of a tenant must not go to, in all forms that a resolver may give it."""

from ipaddress import ip_network

import pytest

from scheduler.core.networks import networks_of, refusal

DENIED = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255"),
    *("127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.0.1", "169.254.169.254", "172.16.0.1"),
    *("172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1"),
    *("198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "::2", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1"),
    *("::ffff:8.8.8.8", "::ffff:100.64.0.1", "::ffff:0:8.8.8.8", "64:ff9b::127.0.0.1", "64:ff9b::8.8.8.8"),
    *("64:ff9b:1::1", "100::1", "100:0:0:1::1", "1000::1", "2001::1", "2001:0:4136:e378::1", "2001:10::1"),
    *("2001:20::1", "2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "3fff::1", "4000::1", "5f00::1"),
    *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ffff::1"),
]

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1"]
PUBLIC += ["192.0.1.1", "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450:4001:80e::200e"]


@pytest.mark.parametrize("address", DENIED)
def test_nothing_is_sent_behind_the_walls(address: str) -> None:
    assert refusal(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_may_be_called(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0x7f000001", "2130706433", "1.2.3.4.5", "[::1]"])
def test_what_is_no_address_is_refused(text: str) -> None:
    assert refusal(text) == "is no address"


def test_an_operator_opens_networks_and_no_more() -> None:
    opened = networks_of("10.1.0.0/16, fd00:1::/32")
    assert opened == (ip_network("10.1.0.0/16"), ip_network("fd00:1::/32"))
    assert refusal("10.1.2.3", opened) is None
    assert refusal("fd00:1::5", opened) is None
    assert refusal("10.2.0.1", opened) == "is private"
    assert refusal("::ffff:10.1.2.3", opened)  # the same machine by another road: not what was opened
    with pytest.raises(ValueError, match="host bits"):
        networks_of("10.1.2.3/16")
