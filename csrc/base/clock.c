/* SPDX-License-Identifier: Apache-2.0
 *
 * clock: the shared page, and the question of the kernel.
 */
#include "clock.h"

#include <stddef.h>
#include <sys/timex.h>

#include "sys.h"

static struct clock_page *page;

bool clock_share(void)
{
    if (page) return true;
    void *mapped = sys->mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    page = mapped;
    return true;
}

struct clock_page *clock_shared(void) { return page; }

bool clock_is_believed(void)
{
    if (!page) return true;
    int64_t wall = sys->now_ms(), boot = sys->boot_ms();
    /* The supervisor writes them the other way round: who finds the offset after a step finds what is held for it, too. */
    int64_t moved = wall - boot - atomic_load_explicit(&page->offset_ms, memory_order_acquire);
    if (boot < atomic_load_explicit(&page->held_until_ms, memory_order_relaxed)) return false;
    return moved <= CLOCK_STEP_MS && moved >= -CLOCK_STEP_MS;
}

bool clock_is_synchronised(void)
{
    struct timex asked = {0};
    int state = adjtimex(&asked);
    return state >= 0 && state != TIME_ERROR && !(asked.status & STA_UNSYNC);
}
