/* Each row's largest and smallest value, its sum, and whether the label is the first of the largest values, in one pass
 * over memory, where separate operations need three. And sums over bins.
 *
 * A NaN makes the sum of its row NaN; the other results for that row are then meaningless.
 *
 * compiled.py calls the functions that are not static. Rename them when their arguments change: a library from an
 * earlier build then counts as missing, and torch does the work.
 */
#ifndef REAL

#include <stddef.h>
#include <stdint.h>

/* The widest vector instructions of the machine are chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

#define LANES 32        /* columns processed side by side, so that the compiler uses vector registers */
#define CHUNK (1 << 18) /* values that a thread takes at a time */
#define PAGE 4096       /* bytes */
#define TURNS 4         /* sets of bins, filled in turn: two additions in a row to the same number would wait for each other */

#define REAL float
#define ROWS rows_float32
#define CHUNK_OF_ROWS chunk_float32
#define FIRST first_float32
#define BINS bins_float32
#include "_rows.c"

#undef REAL
#undef ROWS
#undef CHUNK_OF_ROWS
#undef FIRST
#undef BINS
#define REAL double
#define ROWS rows_float64
#define CHUNK_OF_ROWS chunk_float64
#define FIRST first_float64
#define BINS bins_float64
#include "_rows.c"

#else /* What follows is compiled for each REAL. */

FOR_EACH_CPU
static void CHUNK_OF_ROWS(const REAL *x, const int64_t *label, ptrdiff_t n, ptrdiff_t k,
                          REAL *top, REAL *low, REAL *total, unsigned char *hit)
{
    for (ptrdiff_t i = 0; i < n; i++, x += k) {
        REAL high = x[0], least = x[0], sum = 0;
        ptrdiff_t j = 0;
        if (k >= LANES) {
            REAL highs[LANES], leasts[LANES], sums[LANES];
            for (int a = 0; a < LANES; a++)
                highs[a] = leasts[a] = sums[a] = x[a];
            for (j = LANES; j + LANES <= k; j += LANES) {
                /* The processor reads ahead by itself, but only to the end of a page. */
                if (j % (ptrdiff_t)(PAGE / sizeof(REAL)) == LANES)
                    __builtin_prefetch((const char *)(x + j) + PAGE);
                for (int a = 0; a < LANES; a++) {
                    REAL v = x[j + a];
                    highs[a] = v > highs[a] ? v : highs[a];
                    leasts[a] = v < leasts[a] ? v : leasts[a];
                    sums[a] += v;
                }
            }
            for (int a = 0; a < LANES; a++) {
                high = highs[a] > high ? highs[a] : high;
                least = leasts[a] < least ? leasts[a] : least;
                sum += sums[a];
            }
        }
        for (; j < k; j++) {
            high = x[j] > high ? x[j] : high;
            least = x[j] < least ? x[j] : least;
            sum += x[j];
        }
        top[i] = high;
        low[i] = least;
        total[i] = sum;
        if (label) {
            int first = x[label[i]] == high;
            /* Two non-negative numbers can tie for the largest only if they are at most half of the sum. */
            if (!(least >= 0 && high > (REAL)0.51 * sum) && first)
                for (j = 0; j < label[i]; j++)
                    first &= x[j] != high;
            hit[i] = (unsigned char)first;
        }
    }
}

/* Any number of threads may call this for the same rows: each takes the `next` chunk until none is left. */
void ROWS(const REAL *x, const int64_t *label, ptrdiff_t n, ptrdiff_t k,
          REAL *top, REAL *low, REAL *total, unsigned char *hit, ptrdiff_t *next)
{
    ptrdiff_t step = CHUNK / k + 1, i;
    while ((i = __atomic_fetch_add(next, step, __ATOMIC_RELAXED)) < n)
        CHUNK_OF_ROWS(x + i * k, label ? label + i : label, n - i < step ? n - i : step, k,
                      top + i, low + i, total + i, hit + i);
}

/* The first column of each row that holds the row's value, which the row must contain. */
FOR_EACH_CPU
void FIRST(const REAL *x, const REAL *value, ptrdiff_t n, ptrdiff_t k, int64_t *place)
{
    for (ptrdiff_t i = 0; i < n; i++, x += k) {
        REAL v = value[i];
        ptrdiff_t j = 0;
        for (int found = 0; j + LANES <= k; j += LANES) {
            for (int a = 0; a < LANES; a++)
                found |= x[j + a] == v;
            if (found)
                break;
        }
        while (j < k - 1 && x[j] != v)
            j++;
        place[i] = j;
    }
}

/* Values by bin of equal width, (lo, hi] or [lo, hi): their number, their sum and their hits, TURNS × n_bins of each.
 * Division finds the bin up to rounding; the edges themselves decide. */
void BINS(const REAL *value, const unsigned char *hit, ptrdiff_t n, const double *edge, ptrdiff_t n_bins,
          int closed_right, int64_t *count, double *total, int64_t *hits)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        double v = value[i];
        ptrdiff_t b = (ptrdiff_t)(v * (double)n_bins);
        b = b < 0 ? 0 : b < n_bins ? b : n_bins - 1;
        /* The rarer condition comes first. */
        b -= (closed_right ? v <= edge[b] : v < edge[b]) && b > 0;
        b += (closed_right ? v > edge[b + 1] : v >= edge[b + 1]) && b < n_bins - 1;
        b += i % TURNS * n_bins;
        count[b] += 1;
        total[b] += v;
        hits[b] += hit[i];
    }
}

#endif
