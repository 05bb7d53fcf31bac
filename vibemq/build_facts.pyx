# SPDX-License-Identifier: Apache-2.0
"""What the C core was compiled by, and which instruction sets of this processor it uses: for `vibemq --version`."""

cdef extern from *:
    """
    #if defined(__clang__)
    #define BUILT_BY "clang " __clang_version__
    #else
    #define BUILT_BY "gcc " __VERSION__
    #endif
    """
    const char *BUILT_BY

cdef extern from "base/cpu.h" nogil:
    enum:
        CPU_SETS
    bint cpu_has(int set)
    const char *cpu_set_name(int set)

cdef extern from "base/crc32.h" nogil:
    const char *crc32_kernel()


def compiler() -> str:
    """Name and version."""
    return BUILT_BY.decode().strip()


def instruction_sets() -> list[str]:
    """Those beyond the baseline that may be used: what the processor has, less VIBEMQ_CPU_WITHOUT."""
    return [cpu_set_name(number).decode() for number in range(CPU_SETS) if cpu_has(number)]


def checksums_by() -> str:
    """How CRC-32 is computed here."""
    return crc32_kernel().decode()
