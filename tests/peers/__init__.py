# SPDX-License-Identifier: Apache-2.0
"""The other end: a raw connection to each door, servers for the clients, and codecs that ours are compared with."""
