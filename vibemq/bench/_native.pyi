# SPDX-License-Identifier: Apache-2.0
"""Types of the native protocol's load threads."""

from vibemq.bench._flow import Consumer, Publisher

class NativePublisher(Publisher): ...
class NativeConsumer(Consumer): ...
