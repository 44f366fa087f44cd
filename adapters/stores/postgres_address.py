"""Where PostgreSQL is, said so that a connection notices when the machine at its other end is gone without a word."""

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

#: Without these a call whose server lost its power, or its network, waits for an answer for ever. With them it fails some
#: ten seconds later: as soon as leases have to have lapsed. A server that is only slow still acknowledges what it gets.
ALIVE = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def noticing(url: str) -> str:
    """Return the address with what makes a dead connection fail; what the address says of that itself counts more."""
    try:
        own = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return url  # whoever connects by it says what is wrong with it
    return make_conninfo(url, **{name: value for name, value in ALIVE.items() if name not in own})
