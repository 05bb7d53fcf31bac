# SPDX-License-Identifier: Apache-2.0
MESSAGES_MAX: int
WAIT_MS_MAX: int
