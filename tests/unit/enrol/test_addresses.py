import pytest

from sparkd.enrol.addresses import agents_endpoint
from sparkd.errors import UsageError


def test_where_agents_are_awaited() -> None:
    assert agents_endpoint("127.0.0.1") == "127.0.0.1:7071"
    assert agents_endpoint("localhost") == "localhost:7071"


@pytest.mark.parametrize("address", ["192.0.2.77", "2001:db8::77", "no such host"])
def test_an_address_that_is_not_ours_is_refused_with_those_that_are(address: str) -> None:
    with pytest.raises(UsageError, match="it has:"):
        agents_endpoint(address)


def test_ipv6_is_written_so_that_its_port_is_found() -> None:
    try:
        assert agents_endpoint("::1") == "[::1]:7071"
    except UsageError:
        pytest.skip("no IPv6 here")
    assert agents_endpoint("[::1]") == "[::1]:7071"
