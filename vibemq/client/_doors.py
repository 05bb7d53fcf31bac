# SPDX-License-Identifier: Apache-2.0
"""Who knocked at the wrong door of a broker: what answers there, by its first bytes, and where the right one is."""

from vibemq.protocols.micromsg2 import spec as micromsg2
from vibemq.protocols.native import spec as native
from vibemq.protocols.streams import spec as streams

# how answers begin, who gives them, and which doors of a broker do
SPEAKERS = (
    (b"HTTP", "an HTTP server", "HTTP is spoken by the management API (2926) and the SignalR door (2927)."),
    (b"\x04\x33UN", "a MicroMsg2 peer", f"MicroMsg2 is spoken on port {micromsg2.PORT_DEFAULT}."),
    (b"\x15\x03", "a TLS server", "TLS is spoken on ports of its own: streams 5551, SignalR 2937, MicroMsg2 2938."),
)
PORTS = {
    "native": f"native {native.PORT_DEFAULT}",
    "streams": f"streams {streams.PORT_DEFAULT} (TLS 5551)",
    "MicroMsg2": f"MicroMsg2 {micromsg2.PORT_DEFAULT} (TLS 2938)",
    "SignalR": "SignalR 2927 (TLS 2937)",
    "management": "management 2926",
}


def who_speaks(heard: bytes) -> str:
    return next((who for begin, who, _ in SPEAKERS if heard.startswith(begin)), "something else")


def wrong_door(wanted: str, heard: bytes = b"") -> str:
    """A hint for whoever wanted one door and `heard` this from another, or nothing at all."""
    found = next((where for begin, _, where in SPEAKERS if heard.startswith(begin)), "")
    doors = ", ".join(PORTS.values())
    return f"Is this the {wanted} port? {found or f'The doors of a broker, unless configured otherwise: {doors}.'}" + (
        f" The {wanted} door: {PORTS[wanted]}, unless configured otherwise." if found else ""
    )
