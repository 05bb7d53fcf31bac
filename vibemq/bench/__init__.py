# SPDX-License-Identifier: Apache-2.0
"""`vibemq bench`: the load generator, for this broker and for any other server of the streams protocol."""
