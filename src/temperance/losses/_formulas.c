/* Runs the formulas of losses over samples: the loss of each, or its gradient in the logits.
 *
 * A formula is a list of steps on registers: matrices with a value for each class, and scalars. The samples go through
 * it one by one, or for dense predictions sixteen neighbours side by side, so that all of this stays in the nearest
 * cache, and memory is read once and written once. Threads are those of OpenMP, which torch has awake already.
 * compiled.py makes the steps and the jobs.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The widest instructions that the machine has are chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

/* Into each of the two functions that are made for each of these, and there vectorised. */
#define INLINE static inline __attribute__((always_inline))

#define LANES 16        /* dense samples that are taken side by side */
#define SIDE 32         /* values that are added up side by side, so that nothing waits for the last sum; some LANES */
#define CHUNK (1 << 15) /* logits that a thread takes at a time */

/* ----------------------------------------------------------------------- functions that the compiler can vectorise: */
/* both sides of a condition are there before it is asked for. */

INLINE float from_bits(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE int32_t to_bits(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof x);
    return bits;
}

/* e^r − 1 − r for |r| ≤ ln(2) / 2: the polynomial of Cephes. */
INLINE float exp_tail(float r)
{
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    return y * r * r;
}

/* Of numbers up to 0. */
INLINE float exp_down(float x)
{
    float c = x < -87.0f ? -87.0f : x;
    float t = c * 1.44269504f + 12583039.0f; /* 1.5 · 2^23 + 127: the last bits are those of a power of two */
    float n = t - 12583039.0f;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    float y = (exp_tail(r) + r + 1.0f) * from_bits((int32_t)((uint32_t)to_bits(t) << 23));
    return x < -87.0f ? 0.0f : y;
}

INLINE float exp_(float x)
{
    float down = x > 0 ? -x : x, y = exp_down(down), up = 1.0f / y;
    return x > 0 ? up : y;
}

INLINE float expm1_(float x)
{
    float near = exp_tail(x) + x, far = exp_(x) - 1.0f, size = x < 0 ? -x : x;
    return size < 0.34f ? near : far;
}

/* Of numbers above 0; the polynomial of Cephes. */
INLINE float log_(float x)
{
    int32_t bits = to_bits(x) - 0x3f3504f3; /* sqrt(1/2) */
    float e = (float)(bits >> 23);
    float m = from_bits((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    float y = 7.0376836292e-2f;
    y = y * m - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * m * m - e * 2.12194440e-4f - 0.5f * m * m;
    y = m + y + e * 0.693359375f;
    return x == x ? y : x;
}

/* --------------------------------------------------------------------------------------------------------- the steps */

#define UNARY(X)            \
    X(neg, -x)              \
    X(exp, exp_(x))         \
    X(expm1, expm1_(x))     \
    X(log, log_(x))         \
    X(abs, x < 0 ? -x : x)  \
    X(relu, x < 0 ? 0 : x)  \
    X(square, x *x)         \
    X(ones_like, ((void)x, 1.0f))

#define BINARY(X)               \
    X(add, x + y)               \
    X(sub, x - y)               \
    X(mul, x *y)                \
    X(truediv, x / y)           \
    X(pow, exp_(y *log_(x)))    \
    X(clamp_min, x < y ? y : x) \
    X(clamp_max, x > y ? y : x) \
    X(minimum, x > y ? y : x)   \
    X(eq, (float)(x == y))      \
    X(lt, (float)(x < y))       \
    X(le, (float)(x <= y))      \
    X(gt, (float)(x > y))       \
    X(ge, (float)(x >= y))

#define OTHER(X) X(sum) X(dot) X(amax) X(amin) X(first_largest) X(pick) X(put) X(where) X(spread) X(lookup) X(soft_rank) X(soft_density)

#define CODE(name, ...) op_##name,
#define NAME(name, ...) #name,
enum { UNARY(CODE) BINARY(CODE) OTHER(CODE) n_ops };
static const char *const names[] = {UNARY(NAME) BINARY(NAME) OTHER(NAME)};

/* The number of a step, by its name; −1 if there is none. */
int step_code(const char *name)
{
    for (int i = 0; i < n_ops; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

/* Registers below n_matrices are matrices: z, p, vectors, results. From there on they are scalars: these, columns,
 * constants, results.
 * No result is where one of its arguments is, but that of `put` may be. */
enum { s_label, s_winner, s_top, s_confidence, s_log_confidence, s_nll, n_inputs };

typedef struct {
    int32_t op, out, in[3];
} step;

typedef struct {
    ptrdiff_t n, k, space;
    const float *logits;   /* (n, k, space) */
    const int64_t *labels; /* (n, space) */
    const float *weight;   /* (k), or nothing */
    int64_t ignore_index;
    /* The formula, and in which registers its results are, or −1. */
    const step *steps;
    const float *constants;
    const float *const *columns; /* (n, space) each */
    const float *const *vectors; /* (k) each */
    const float *const *tables;
    const ptrdiff_t *table_sizes;
    int32_t n_steps, n_matrices, n_scalars;
    int32_t n_columns, n_vectors, n_constants;
    int32_t value, slope, rest;
    int32_t needs_p, needs_winner;
    /* What is wanted, or nothing. */
    float *loss;                 /* one number */
    float *values, *confidences; /* (n, space) */
    float *gradient;             /* (n, k, space) */
    float *class_sums;           /* (k): the gradient, summed over all samples, instead of it */
    /* The gradient is that of something whose derivatives in the losses and in the confidences are these. */
    const float *of_values, *of_confidences; /* (n, space), or nothing */
    float of_each_value;                     /* where there is nothing; */
    int32_t mean;                            /* or this for the mean of all that counts */
    /* Shared by all threads: chunks are so many samples, or blocks of dense ones. */
    ptrdiff_t chunk, next;
    double *sums;    /* of the values in each chunk */
    float *gradients; /* (chunks, k), for `class_sums` */
    double whole;    /* what to divide the sum of the values by for a mean */
} job;

/* Values are [class][lane], `all` of them; scalars are [lane]. */

/* Side by side, as long as there are enough; then one by one; then what was side by side. b may be a. */
#define REDUCE(function, first, new, expression)                                                               \
    INLINE void function(float *restrict o, const float *a, const float *b, ptrdiff_t all, const int lanes)    \
    {                                                                                                          \
        float s[SIDE];                                                                                         \
        ptrdiff_t i = 0;                                                                                       \
        const int side = all < SIDE ? lanes : SIDE;                                                            \
        (void)b;                                                                                               \
        for (int l = 0; l < side; l++)                                                                         \
            s[l] = first;                                                                                      \
        for (; i + SIDE <= all; i += SIDE)                                                                     \
            for (int l = 0; l < SIDE; l++) {                                                                   \
                float x = s[l], y = new;                                                                       \
                s[l] = expression;                                                                             \
            }                                                                                                  \
        for (; i < all; i += lanes)                                                                            \
            for (int l = 0; l < lanes; l++) {                                                                  \
                float x = s[l], y = new;                                                                       \
                s[l] = expression;                                                                             \
            }                                                                                                  \
        for (int half = side / 2; half >= lanes; half /= 2)                                                    \
            for (int l = 0; l < half; l++) {                                                                   \
                float x = s[l], y = s[l + half];                                                               \
                s[l] = expression;                                                                             \
            }                                                                                                  \
        memcpy(o, s, sizeof(float) * (size_t)lanes);                                                           \
    }

REDUCE(add_up, 0, a[i + l], x + y)
REDUCE(multiply_and_add, 0, a[i + l] * b[i + l], x + y)
REDUCE(find_largest, a[l % lanes], a[i + l], y > x ? y : x)
REDUCE(find_smallest, a[l % lanes], a[i + l], y < x ? y : x)

/* The first class with this value; the last class if none has it. */
INLINE void find_first(float *restrict o, const float *restrict a, const float *value, ptrdiff_t all, const int lanes)
{
    if (lanes == 1) {
        const float v = value[0];
        ptrdiff_t j = 0;
        int found = 0;
        for (; !found && j + SIDE <= all; j += SIDE)
            for (int b = 0; b < SIDE; b++)
                found |= a[j + b] == v;
        for (j -= found ? SIDE : 0; j < all - 1 && a[j] != v; j++)
            ;
        o[0] = (float)j;
    } else {
        float first[LANES];
        for (int w = 0; w < lanes; w++)
            first[w] = (float)(all / lanes - 1);
        for (ptrdiff_t j = all / lanes - 1; j >= 0; j--)
            for (int w = 0; w < lanes; w++)
                first[w] = a[j * lanes + w] == value[w] ? (float)j : first[w];
        memcpy(o, first, sizeof(float) * (size_t)lanes);
    }
}

INLINE float look_up(float x, const float *edges, const float *found, ptrdiff_t n_edges)
{
    ptrdiff_t b = 0;
    while (b < n_edges && x > edges[b])
        b++;
    return found[b];
}

/* h σ(d), or h σ'(d). */
INLINE float soft_step(float h, float d, const int density)
{
    float e = exp_down(d < 0 ? d : -d), s = 1.0f / (1.0f + e), up = d < 0 ? e * s : s;
    return h * (density ? s * s * e : up);
}

/* Σ_b h_b σ((x − c_b) / width) with c_b the middles of bins in [0, 1], or its slope in x. */
INLINE float soft(float x, const float *restrict h, ptrdiff_t n_bins, float width, const int density)
{
    float s[SIDE] = {0}, at[SIDE];
    const float step = 1.0f / ((float)n_bins * width);
    ptrdiff_t i = 0;
    for (int l = 0; l < SIDE; l++)
        at[l] = x / width - ((float)l + 0.5f) * step;
    for (; i + SIDE <= n_bins; i += SIDE)
        for (int l = 0; l < SIDE; l++)
            s[l] += soft_step(h[i + l], at[l] - (float)i * step, density);
    for (; i < n_bins; i++)
        s[0] += soft_step(h[i], at[0] - (float)i * step, density);
    for (int half = SIDE / 2; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            s[l] += s[l + half];
    return density ? s[0] / width : s[0];
}

/* e^(a − top), and their sum. */
INLINE void exp_and_add(float *restrict o, float *restrict sum, const float *restrict a, const float *restrict top,
                        ptrdiff_t all, const int lanes)
{
    float t[SIDE], s[SIDE] = {0};
    ptrdiff_t i = 0;
    for (int b = 0; b < SIDE; b++)
        t[b] = top[b % lanes];
    for (; i + SIDE <= all; i += SIDE)
        for (int b = 0; b < SIDE; b++) {
            o[i + b] = exp_down(a[i + b] - t[b]);
            s[b] += o[i + b];
        }
    for (; i < all; i++) {
        o[i] = exp_down(a[i] - t[i % lanes]);
        s[i % lanes] += o[i];
    }
    for (int half = SIDE / 2; half >= lanes; half /= 2)
        for (int b = 0; b < half; b++)
            s[b] += s[b + half];
    memcpy(sum, s, sizeof(float) * (size_t)lanes);
}

#define EACH_CLASS for (ptrdiff_t j = 0; j < k; j++)
#define EACH_LANE for (int w = 0; w < lanes; w++)
#define AT (j * lanes + w)

INLINE void scale(float *restrict a, const float *restrict by, ptrdiff_t k, const int lanes)
{
    float s[LANES];
    memcpy(s, by, sizeof(float) * (size_t)lanes);
    EACH_CLASS EACH_LANE a[AT] *= s[w];
}

#define CASE_UNARY(name, expression)               \
    case op_##name:                                \
        if (lanes == 1 && !matrix_o) {             \
            float x = a[0];                        \
            o[0] = expression;                     \
        } else                                     \
            for (ptrdiff_t i = 0; i < size; i++) { \
                float x = a[i];                    \
                o[i] = expression;                 \
            }                                      \
        break;

#define CASE_BINARY(name, expression)              \
    case op_##name:                                \
        if (lanes == 1 && !matrix_o) {             \
            float x = a[0], y = b[0];              \
            o[0] = expression;                     \
        } else if (matrix_a == matrix_b)           \
            for (ptrdiff_t i = 0; i < size; i++) { \
                float x = a[i], y = b[i];          \
                o[i] = expression;                 \
            }                                      \
        else if (matrix_a)                         \
            EACH_CLASS EACH_LANE {                 \
                float x = a[AT], y = scalar_b[w];  \
                o[AT] = expression;                \
            }                                      \
        else                                       \
            EACH_CLASS EACH_LANE {                 \
                float x = scalar_a[w], y = b[AT];  \
                o[AT] = expression;                \
            }                                      \
        break;

INLINE void follow(const job *it, const step *s, float *const *registers, const int lanes)
{
    const ptrdiff_t k = it->k, all = k * lanes;
    const int matrix_a = s->in[0] < it->n_matrices, matrix_b = s->in[1] < it->n_matrices;
    const int matrix_c = s->in[2] < it->n_matrices, matrix_o = s->out < it->n_matrices;
    const ptrdiff_t size = matrix_o ? all : lanes;
    float *restrict o = registers[s->out];
    const float *restrict a = registers[s->in[0]], *restrict b = registers[s->in[1]], *restrict c = registers[s->in[2]];
    /* Where nothing can be written meanwhile, which the compiler wants to know. */
    float scalar_a[LANES], scalar_b[LANES], scalar_c[LANES];
    memcpy(scalar_a, a, sizeof(float) * (size_t)lanes);
    memcpy(scalar_b, b, sizeof(float) * (size_t)lanes);
    memcpy(scalar_c, c, sizeof(float) * (size_t)lanes);
    switch (s->op) {
        UNARY(CASE_UNARY)
        BINARY(CASE_BINARY)
    case op_sum:
        add_up(o, a, a, all, lanes);
        break;
    case op_dot:
        multiply_and_add(o, a, b, all, lanes);
        break;
    case op_amax:
        find_largest(o, a, a, all, lanes);
        break;
    case op_amin:
        find_smallest(o, a, a, all, lanes);
        break;
    case op_first_largest:
        find_largest(scalar_a, a, a, all, lanes);
        find_first(o, a, scalar_a, all, lanes);
        break;
    case op_pick:
        EACH_LANE o[w] = a[(ptrdiff_t)b[w] * lanes + w];
        break;
    case op_put:
        if (o != a)
            memcpy(o, a, sizeof(float) * (size_t)all);
        EACH_LANE o[(ptrdiff_t)b[w] * lanes + w] = c[w];
        break;
    case op_where:
        if (matrix_o && !matrix_c)
            EACH_CLASS EACH_LANE o[AT] = a[AT] != 0 ? b[AT] : scalar_c[w];
        else
            for (ptrdiff_t i = 0; i < size; i++)
                o[i] = a[i] != 0 ? b[i] : c[i];
        break;
    case op_spread:
        EACH_CLASS EACH_LANE o[AT] = scalar_a[w];
        break;
    case op_lookup:
        EACH_LANE o[w] = look_up(a[w], it->tables[s->in[1]], it->tables[s->in[2]], it->table_sizes[s->in[1]]);
        break;
    case op_soft_rank:
        EACH_LANE o[w] = soft(a[w], it->tables[s->in[1]], it->table_sizes[s->in[1]], c[w], 0);
        break;
    case op_soft_density:
        EACH_LANE o[w] = soft(a[w], it->tables[s->in[1]], it->table_sizes[s->in[1]], c[w], 1);
        break;
    }
}

/* A library from another build, which has other jobs, counts as missing. */
size_t job_size(void)
{
    return sizeof(job);
}

/* What a sample counts, by its label: 0 if that is ignored, −1 if it is out of range. */
INLINE float count(const job *it, int64_t label)
{
    if (label == it->ignore_index)
        return 0;
    if (label < 0 || label >= it->k)
        return -1;
    return it->weight ? it->weight[label] : 1;
}

/* Samples `first` to `last`; where they are dense, blocks of `lanes` neighbours. */
INLINE void follow_all(job *it, float **registers, ptrdiff_t first, ptrdiff_t last, const int lanes)
{
    const ptrdiff_t k = it->k, all = k * lanes, space = it->space, blocks = (space + lanes - 1) / lanes;
    float *const *scalars = registers + it->n_matrices;
    float *label = scalars[s_label], *winner = scalars[s_winner], *top = scalars[s_top], *nll = scalars[s_nll];
    float *confidence = scalars[s_confidence], *log_confidence = scalars[s_log_confidence];
    float *p = registers[1], *own = registers[0];
    double total = 0;
    for (ptrdiff_t block = first; block < last; block++) {
        const ptrdiff_t sample = block / blocks, place = block % blocks * lanes, start = sample * space + place;
        const int here = space - place < lanes ? (int)(space - place) : lanes; /* of these neighbours there are */
        const float *logits = it->logits + sample * k * space + place;
        float counts[LANES] = {0}, sum[LANES], pull[LANES], push[LANES];
        /* The labels. */
        EACH_LANE label[w] = 0;
        for (int w = 0; w < here; w++) {
            counts[w] = count(it, it->labels[start + w]);
            label[w] = counts[w] > 0 ? (float)it->labels[start + w] : 0;
        }
        for (int32_t c = 0; c < it->n_columns; c++)
            for (int w = 0; w < here; w++)
                scalars[n_inputs + c][w] = it->columns[c][start + w];
        /* The logits: as they are, or together with their neighbours. */
        if (lanes == 1) {
            registers[0] = (float *)logits;
        } else {
            EACH_CLASS {
                memset(own + j * lanes, 0, sizeof(float) * (size_t)lanes);
                memcpy(own + j * lanes, logits + j * space, sizeof(float) * (size_t)here);
            }
        }
        const float *restrict z = registers[0];
        /* What formulas start from. */
        find_largest(top, z, z, all, lanes);
        exp_and_add(p, sum, z, top, all, lanes);
        EACH_LANE {
            confidence[w] = 1.0f / sum[w];
            log_confidence[w] = -log_(sum[w]);
            nll[w] = top[w] - z[(ptrdiff_t)label[w] * lanes + w] - log_confidence[w];
        }
        if (it->needs_p)
            scale(p, confidence, k, lanes);
        if (it->needs_winner)
            find_first(winner, z, top, all, lanes);
        for (int32_t s = 0; s < it->n_steps; s++)
            follow(it, it->steps + s, registers, lanes);
        for (int w = 0; w < here; w++) {
            float value = counts[w] > 0 && it->value >= 0 ? counts[w] * registers[it->value][w] : 0;
            total += value;
            if (it->values)
                it->values[start + w] = value;
            if (it->confidences)
                it->confidences[start + w] = confidence[w];
        }
        if (!it->gradient && !it->class_sums)
            continue;
        /* slope · (p − q) + rest for the loss, confidence · (e_winner − p) for the confidence. */
        const float *slope = registers[it->slope];
        float steps[LANES] = {0}, along[LANES];
        for (int w = 0; w < lanes; w++) {
            if (counts[w] > 0)
                steps[w] = counts[w] * (it->of_values ? it->of_values[start + w] : it->of_each_value);
            push[w] = counts[w] > 0 ? steps[w] * slope[w] : 0.0f;
            pull[w] = it->of_confidences && w < here ? it->of_confidences[start + w] * confidence[w] : 0.0f;
            along[w] = (push[w] - pull[w]) * (it->needs_p ? 1.0f : confidence[w]);
        }
        float *gradient = lanes == 1 && it->gradient ? it->gradient + sample * k : own;
        if (it->rest < 0)
            EACH_CLASS EACH_LANE gradient[AT] = along[w] * p[AT];
        else {
            const float *rest = registers[it->rest];
            EACH_CLASS EACH_LANE gradient[AT] = along[w] * p[AT] + steps[w] * rest[AT];
        }
        EACH_LANE gradient[(ptrdiff_t)label[w] * lanes + w] -= push[w];
        if (it->of_confidences)
            EACH_LANE gradient[(ptrdiff_t)winner[w] * lanes + w] += pull[w];
        /* What does not count has no gradient, not even if its logits are no numbers. */
        for (int w = 0; w < here; w++)
            if (counts[w] == 0 && !it->of_confidences)
                EACH_CLASS gradient[AT] = 0;
        if (it->class_sums) {
            float *sums = it->gradients + first / it->chunk * k;
            EACH_CLASS EACH_LANE sums[j] += gradient[AT];
        } else if (lanes > 1)
            EACH_CLASS memcpy(it->gradient + (sample * k + j) * space + place, own + j * lanes,
                              sizeof(float) * (size_t)here);
    }
    registers[0] = own;
    it->sums[first / it->chunk] = total;
}

FOR_EACH_CPU
static void follow_one_by_one(job *it, float **registers, ptrdiff_t first, ptrdiff_t last)
{
    follow_all(it, registers, first, last, 1);
}

FOR_EACH_CPU
static void follow_neighbours(job *it, float **registers, ptrdiff_t first, ptrdiff_t last)
{
    follow_all(it, registers, first, last, LANES);
}

static ptrdiff_t n_blocks(const job *it)
{
    return it->space == 1 ? it->n : it->n * ((it->space + LANES - 1) / LANES);
}

static ptrdiff_t n_chunks(const job *it)
{
    return (n_blocks(it) + it->chunk - 1) / it->chunk;
}

enum { fine, no_memory, wrong_label };

/* Before the work: count the samples and cut them into chunks. */
static int begin(job *it)
{
    it->whole = 0;
    for (ptrdiff_t i = 0; i < it->n * it->space; i++) {
        float one = count(it, it->labels[i]);
        if (one < 0)
            return wrong_label;
        it->whole += one;
    }
    it->whole = it->whole > 0 ? it->whole : 1;
    if (it->mean)
        it->of_each_value = (float)(it->of_each_value / it->whole);
    it->chunk = CHUNK / (it->k * (it->space == 1 ? 1 : LANES)) + 1;
    it->sums = calloc((size_t)n_chunks(it), sizeof *it->sums);
    it->gradients = it->class_sums ? calloc((size_t)(n_chunks(it) * it->k), sizeof(float)) : NULL;
    return it->sums && (it->gradients || !it->class_sums) ? fine : no_memory;
}

/* What each thread does: take the chunk that is `next` until none is left. */
static int work(job *it)
{
    const ptrdiff_t lanes = it->space == 1 ? 1 : LANES, blocks = n_blocks(it), n_matrices = it->n_matrices;
    const ptrdiff_t n_registers = n_matrices + it->n_scalars, scalars = n_matrices * it->k;
    float *memory = malloc(sizeof(float) * (size_t)(lanes * (scalars + it->n_scalars)));
    float **registers = malloc(sizeof(float *) * (size_t)n_registers);
    const int none = !memory || !registers;
    if (!none) {
        for (ptrdiff_t i = 0; i < n_registers; i++)
            registers[i] = memory + lanes * (i < n_matrices ? i * it->k : scalars + i - n_matrices);
        for (ptrdiff_t v = 0; v < it->n_vectors; v++)
            for (ptrdiff_t i = 0; i < lanes * it->k; i++)
                registers[2 + v][i] = it->vectors[v][i / lanes];
        for (ptrdiff_t i = 0; i < lanes * it->n_constants; i++)
            registers[n_matrices + n_inputs + it->n_columns][i] = it->constants[i / lanes];
        ptrdiff_t first;
        while ((first = __atomic_fetch_add(&it->next, it->chunk, __ATOMIC_RELAXED)) < blocks) {
            ptrdiff_t last = first + it->chunk < blocks ? first + it->chunk : blocks;
            (lanes == 1 ? follow_one_by_one : follow_neighbours)(it, registers, first, last);
        }
    }
    free(memory);
    free(registers);
    return none ? no_memory : fine;
}

/* After it: add up what was found in the chunks. */
static void end(job *it)
{
    double total = 0;
    for (ptrdiff_t c = 0; c < n_chunks(it); c++)
        total += it->sums[c];
    if (it->loss)
        *it->loss = (float)(it->mean ? total / it->whole : total);
    if (it->class_sums)
        for (ptrdiff_t j = 0; j < it->k; j++) {
            it->class_sums[j] = 0;
            for (ptrdiff_t c = 0; c < n_chunks(it); c++)
                it->class_sums[j] += it->gradients[c * it->k + j];
        }
}

/* Do a job, with so many threads at most. */
int run(job *it, int threads)
{
    int found = begin(it);
    if (found == fine) {
        threads = threads < n_chunks(it) ? threads : (int)n_chunks(it);
#pragma omp parallel num_threads(threads) reduction(max : found) if (threads > 1)
        found = work(it);
        end(it);
    }
    free(it->sums);
    free(it->gradients);
    return found;
}

/* -------------------------------------------------------------------------------------------------- a batch of scores */

/* Puts number `wanted` of the numbers in order where it belongs, with none that is larger before it and none that is
 * smaller behind it. */
static void part(float *a, ptrdiff_t n, ptrdiff_t wanted)
{
    uint64_t any = 1;
    for (ptrdiff_t low = 0, high = n - 1; low < high;) {
        /* Cut at any of them: whatever their order, that takes linear time. */
        any = any * 6364136223846793005u + 1442695040888963407u;
        const float middle = a[low + (ptrdiff_t)((any >> 33) % (uint64_t)(high - low + 1))];
        ptrdiff_t i = low, j = high;
        while (i <= j) {
            for (; a[i] < middle; i++)
                ;
            for (; a[j] > middle; j--)
                ;
            if (i <= j) {
                float one = a[i];
                a[i++] = a[j];
                a[j--] = one;
            }
        }
        if (wanted <= j)
            high = j;
        else if (wanted >= i)
            low = i;
        else
            break;
    }
}

/* Of scores in [0, 1] whose labels are not ignored: how many there are, a quantile, between two of them where it falls
 * there, and the share in each bin [b, b + 1) / n_bins, the last one closed, of these and those counted `before`. */
int survey(const float *scores, const int64_t *labels, ptrdiff_t n, int64_t ignore_index, const int64_t *before,
           ptrdiff_t n_bins, double share, float *shares, float *quantile, float *whole)
{
    double *counts = malloc(sizeof *counts * (size_t)n_bins), all = 0;
    float *copy = malloc(sizeof *copy * (size_t)n);
    const int none = !counts || !copy;
    if (!none) {
        ptrdiff_t m = 0;
        for (ptrdiff_t b = 0; b < n_bins; b++)
            counts[b] = (double)before[b];
        for (ptrdiff_t i = 0; i < n; i++)
            if (labels[i] != ignore_index) {
                const float place = scores[i] * (float)n_bins;
                copy[m++] = scores[i] == scores[i] ? scores[i] : from_bits(0x7f800000); /* no number is above all */
                counts[place >= (float)n_bins ? n_bins - 1 : place > 0 ? (ptrdiff_t)place : 0]++;
            }
        for (ptrdiff_t b = 0; b < n_bins; b++)
            all += counts[b];
        for (ptrdiff_t b = 0; b < n_bins; b++)
            shares[b] = (float)(counts[b] / (all > 0 ? all : 1));
        *whole = (float)m;
        *quantile = 0;
        if (m > 0) {
            const double position = share * (double)(m - 1);
            const ptrdiff_t below = (ptrdiff_t)position;
            part(copy, m, below);
            float above = copy[below + (below < m - 1)];
            for (ptrdiff_t i = below + 1; i < m; i++)
                above = copy[i] < above ? copy[i] : above;
            *quantile = copy[below] + (float)(position - (double)below) * (above - copy[below]);
        }
    }
    free(counts);
    free(copy);
    return none ? no_memory : fine;
}

typedef struct {
    uint32_t key, place;
} ranked;

/* What each of some scores counts in AURC: the sum of 1 / (n − r) over the ranks r up to its own, from 0. Scores whose
 * label is ignored come first and count 0; equal ones keep their order. */
int rank(const float *scores, const int64_t *labels, ptrdiff_t n, int64_t ignore_index, float *weights)
{
    ranked *one = malloc(sizeof *one * (size_t)n), *other = malloc(sizeof *other * (size_t)n);
    const int none = !one || !other;
    if (!none) {
        ptrdiff_t starts[4][257] = {{0}};
        for (ptrdiff_t i = 0; i < n; i++) {
            /* The bits of numbers from 0 up are in their order, and those of what is no number above all. */
            const float score = scores[i] < 0 ? 0.0f : scores[i];
            one[i].key = labels[i] == ignore_index ? 0 : (uint32_t)to_bits(score + 0.0f) + 1;
            one[i].place = (uint32_t)i;
            for (int d = 0; d < 4; d++)
                starts[d][1 + (one[i].key >> 8 * d & 255)]++;
        }
        /* By the last digit, then by the one before. */
        for (int d = 0; d < 4; d++) {
            for (int v = 0; v < 256; v++)
                starts[d][v + 1] += starts[d][v];
            for (ptrdiff_t i = 0; i < n; i++)
                other[starts[d][one[i].key >> 8 * d & 255]++] = one[i];
            ranked *sorted = other;
            other = one;
            one = sorted;
        }
        double weight = 0;
        for (ptrdiff_t i = 0; i < n; i++) {
            weight += one[i].key ? 1 / (double)(n - i) : 0;
            weights[one[i].place] = (float)weight;
        }
    }
    free(one);
    free(other);
    return none ? no_memory : fine;
}
