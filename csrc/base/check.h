/* SPDX-License-Identifier: Apache-2.0
 *
 * check: assertions that survive -DNDEBUG (setuptools sets it).
 *
 * CHECK is for what must hold or memory is at risk: it stays in every build and ends the process with the file, line
 * and expression.  DEBUG_CHECK is for invariants that cost something; it is compiled in with -DVIBEMQ_DEBUG only.
 */
#ifndef VIBEMQ_BASE_CHECK_H
#define VIBEMQ_BASE_CHECK_H

_Noreturn void check_failed(const char *expression, const char *file, int line);

#define CHECK(x) (__builtin_expect(!!(x), 1) ? (void)0 : check_failed(#x, __FILE__, __LINE__))
#ifdef VIBEMQ_DEBUG
#define DEBUG_CHECK(x) CHECK(x)
#else
#define DEBUG_CHECK(x) ((void)sizeof(x))
#endif

#endif
