/* Attention between rows of jagged tensors on CPU: softmax or activation, forward and backward, float32.
 *
 * All operations (jagged, block with rotation, GDPA) are one problem: tasks, each a row of keys and the rows of
 * queries that read it. A thread takes a (task, head), copies the keys and values of that head side by side (turned
 * where there is a rotation), and walks over tiles of TQ queries by TK keys. Inside a tile the queries lie in vector
 * lanes and keys are broadcast: scores stand as S^T[key][query], so softmax needs no horizontal step, and all products
 * of both passes are of two forms, A B and A^T B, with A broadcast and B in vectors:
 *
 *   forward   S^T = K Q^T         O^T = V^T P^T
 *   backward  dP^T = V dO^T       dV = P^T dO      dK = dS^T Q      dQ^T = K^T dS^T
 *
 * Exponentials are powers of two (log2(e) is part of the scale). NaN and infinity come through: every minimum and
 * maximum is written so that NaN survives it. No global state but the thread pool; plain C and pthreads.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define VL 16 /* floats a vector */
#define NMAX 4 /* vectors side by side in a register tile */
#elif defined(__AVX__)
#include <immintrin.h>
#define VL 8
#define NMAX 2
#else
#define VL 4
#define NMAX 2
#endif
#define TQ 64
#define TK 64
#define EDGE 16 /* keys of a tile at the edge of a window */
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(VL * 4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4), may_alias));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4), may_alias)); /* in memory, at any address */

/* What to compute. Filled by Python (library.py mirrors it field by field); lengths and strides in floats or rows. */
typedef struct {
    const float *q, *k, *v;            /* first value of head 0 of row 0 */
    int64_t q_row, k_row, v_row;       /* from one row to the next */
    int64_t q_head, k_head, v_head;    /* from one head to the next */
    const float *rotation;             /* cosine, sine of each pair of each row, (rows, width), or NULL */
    const int64_t *q_offsets, *k_offsets; /* NULL: dense rows of q_len or k_len */
    const int64_t *request;            /* the keys' row that each queries' row reads, or NULL: its own */
    int64_t q_rows, k_rows, q_len, k_len;
    int64_t shared_q;                  /* all rows of queries are the same q_len ones */
    int64_t total_q;                   /* rows of out */
    int64_t heads, width;
    int64_t block, shift;              /* attend inside blocks of the rows; 0: in the whole row */
    int64_t back, ahead;               /* query i sees keys i - back to i + ahead */
    const int32_t *activation;         /* one a head, or NULL for softmax */
    double scale;
    float *out;                        /* (total_q, heads, width) */
    float *lse;                        /* (heads, total_q), log2 of the sum of exponentials; softmax only */
    const float *grad;                 /* as out */
    float *dq, *dk, *dv;
    int64_t dq_row, dk_row, dv_row, dq_head, dk_head, dv_head;
} Problem;

enum { IDENTITY, GELU, GELU_TANH, GELU_TAYLOR, RELU, RELU_SQUARED, SILU, HARDSWISH };

/* ---- vectors ---------------------------------------------------------------------------------------------- */

INLINE vf load(const float *p) { return *(const vfu *)p; }
INLINE void store(float *p, vf x) { *(vfu *)p = x; }
INLINE vf all(float x) { return x - (vf){0}; }
INLINE vf pick(vi yes, vf a, vf b) { return (vf)(((vi)a & yes) | ((vi)b & ~yes)); }

/* Larger and smaller of a bound and x; NaN if x is NaN. */
INLINE vf at_least(vf bound, vf x) {
#if VL == 16
    return (vf)_mm512_max_ps((__m512)bound, (__m512)x); /* the second operand where either is NaN */
#elif VL == 8
    return (vf)_mm256_max_ps((__m256)bound, (__m256)x);
#else
    return pick(x < bound, bound, x);
#endif
}
INLINE vf at_most(vf bound, vf x) {
#if VL == 16
    return (vf)_mm512_min_ps((__m512)bound, (__m512)x);
#elif VL == 8
    return (vf)_mm256_min_ps((__m256)bound, (__m256)x);
#else
    return pick(x > bound, bound, x);
#endif
}

/* 2^x for x up to 126, relative error 2e-7; x below -100 counts as -100, so that nothing is denormal. */
INLINE vf exp2v(vf x) {
    x = at_least(all(-100.0f), x);
    vf t = x + 12582912.0f; /* 1.5 * 2^23: rounds to the nearest integer, which stands in the low bits */
    vf n = t - 12582912.0f, f = x - n;
    vf p = f * 1.32647269e-3f + 9.671512661e-3f;
    p = p * f + 5.550733744e-2f;
    p = p * f + 2.402224208e-1f;
    p = p * f + 6.931469776e-1f;
    p = p * f + 1.0f;
#if VL == 16
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    return p * (vf)(((vi)t << 23) + 0x3f800000);
#endif
}

/* log2(x) for x from 2^-100 to 2^100, by Newton's method on 2^y. */
INLINE vf log2v(vf x) {
    vf y = __builtin_convertvector((vi)x, vf) * 0x1p-23f - 127.0f;
    for (int i = 0; i < 3; i++) y += (x * exp2v(-y) - 1.0f) * 1.4426950f;
    return y;
}

INLINE vf inverse(vf x) {
#if VL == 16
    vf y = (vf)_mm512_rcp14_ps((__m512)x);
    return y + y * (1.0f - x * y);
#else
    return 1.0f / x;
#endif
}

/* Rows to columns. */
INLINE void transpose(vf *r) {
    vi lo, hi;
    for (int i = 0; i < VL; i++) lo[i] = i / 2 + (i % 2) * VL, hi[i] = lo[i] + VL / 2;
#pragma GCC unroll 4
    for (int round = 1; round < VL; round *= 2) {
        vf t[VL];
#pragma GCC unroll 16
        for (int i = 0; i < VL / 2; i++) {
            t[2 * i] = __builtin_shuffle(r[i], r[i + VL / 2], lo);
            t[2 * i + 1] = __builtin_shuffle(r[i], r[i + VL / 2], hi);
        }
#pragma GCC unroll 16
        for (int i = 0; i < VL; i++) r[i] = t[i];
    }
}

/* Turn pairs by the angles at `rotation`; `way` -1 turns back. */
INLINE vf turn(vf x, const float *rotation, const int way) {
#if VL == 16
    __m512 r = _mm512_loadu_ps(rotation), cos = _mm512_moveldup_ps(r), sin = _mm512_movehdup_ps(r);
    __m512 swapped = _mm512_mul_ps(_mm512_permute_ps((__m512)x, 0xb1), sin);
    return (vf)(way > 0 ? _mm512_fmaddsub_ps((__m512)x, cos, swapped) : _mm512_fmsubadd_ps((__m512)x, cos, swapped));
#else
    vi even, odd, swap;
    vf sign, r = load(rotation);
    for (int i = 0; i < VL; i++) even[i] = i & ~1, odd[i] = i | 1, swap[i] = i ^ 1, sign[i] = i & 1 ? way : -way;
    return x * __builtin_shuffle(r, even) + __builtin_shuffle(x, swap) * (__builtin_shuffle(r, odd) * sign);
#endif
}

/* ---- a thread's share ------------------------------------------------------------------------------------- */

typedef struct {
    int64_t q0, n, o0; /* queries and their answers */
} Unit;

typedef struct {
    int64_t k0, n, first, last; /* keys, and units that read them */
    double cost;
} Task;

/* Rows that will be wanted soon. */
typedef struct {
    const float *at;
    int64_t row, rows;
} Strip;

/* Memory of one thread, kept between calls. */
typedef struct {
    float S[TK * TQ], dS[TK * TQ], Q[TQ * 128], QT[TQ * 128], G[TQ * 128], GT[TQ * 128], OT[TQ * 128];
    float max[TQ], sum[TQ], lse[TQ], D[TQ];
    float *keys; /* keys, values and their gradients */
    int64_t held;
    Strip strips[8];
    int count, rate; /* strips; rows to ask for at a time */
} Workspace;

/* Ask for a few more of the rows that come next. Heads of a row lie apart from those of the next one, which hardware
 * does not foresee; asked for between products, a few lines at a time, they arrive while the processor computes. */
INLINE void fetch(Workspace *w, const int K) {
    for (int s = 0; s < w->count; s++) {
        Strip *strip = w->strips + s;
        for (int i = 0; i < w->rate && strip->rows > 0; i++, strip->rows--, strip->at += strip->row)
#pragma GCC unroll 8
            for (int c = 0; c < K; c += 16) __builtin_prefetch(strip->at + c, 0, 3);
    }
}

/* ---- products --------------------------------------------------------------------------------------------- */

enum { FRESH, ADD, FROM }; /* C = AB, C += AB, C[m] = init + AB */

/* C[M][N vectors] from A[m * sm + r * sr] and B[r * ldb + n], all in registers. */
INLINE void tile(const int M, const int N, const float *a, int64_t sm, int64_t sr, const float *b, int64_t ldb,
                 float *c, int64_t ldc, int64_t R, const int mode, const float *init) {
    vf acc[8][4]; /* not [M][N]: that would be on the stack */
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++)
            acc[m][n] = mode == ADD ? load(c + m * ldc + n * VL) : mode == FROM ? load(init + n * VL) : all(0);
    for (int64_t r = 0; r < R; r++) {
        vf x[4];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) x[n] = load(b + r * ldb + n * VL);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            vf y = all(a[m * sm + r * sr]);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) acc[m][n] += y * x[n];
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) store(c + m * ldc + n * VL, acc[m][n]);
}

/* As `tile` for any number of vectors and M a multiple of 8. */
INLINE void product(Workspace *w, const int K, int64_t M, int N, const float *a, int64_t sm, int64_t sr, const float *b, int64_t ldb, float *c,
                    int64_t ldc, int64_t R, const int mode, const float *init) {
    for (int n = 0; n < N; n += NMAX, b += NMAX * VL, c += NMAX * VL, init += mode == FROM ? NMAX * VL : 0) {
#define ROWS(m_step, n_vectors)                                                                   \
    for (int64_t m = 0; m < M; m += m_step) {                                                     \
        fetch(w, K);                                                                              \
        tile(m_step, n_vectors, a + m * sm, sm, sr, b, ldb, c + m * ldc, ldc, R, mode, init);     \
    }
        switch (N - n) {
        case 1: ROWS(8, 1) break;
#if NMAX == 2
        default: ROWS(4, 2) break;
#else
        case 2: ROWS(8, 2) break;
        case 3: ROWS(8, 3) break;
        default: ROWS(4, 4) break;
#endif
        }
#undef ROWS
    }
}

/* ---- rows in, rows out ------------------------------------------------------------------------------------ */

/* Copy `rows` rows side by side, turned, and zeros behind them up to a multiple of 8. */
INLINE void pack(float *to, const float *from, int64_t row, int64_t rows, const int K, const float *rotation) {
    for (int64_t i = 0; i < rows; i++)
        for (int c = 0; c < K; c += VL) {
            if (rows > 512 && c % 16 == 0) __builtin_prefetch(from + (i + 16) * row + c, 0, 3);
            vf x = load(from + i * row + c);
            store(to + i * K + c, rotation ? turn(x, rotation + i * K + c, 1) : x);
        }
    memset(to + rows * K, 0, (size_t)(((rows + 7) & ~7) - rows) * K * sizeof(float));
}

/* VL rows, from column c on, as columns. */
INLINE void columns_of(float *to, float *flat, const float *from, int64_t row, const int rows, const int K,
                       const float *rotation, float scale) {
    vf x[VL];
#pragma GCC unroll 16
    for (int j = 0; j < VL; j++) {
        x[j] = all(0);
        if (j < rows) {
            x[j] = load(from + j * row);
            if (rotation) x[j] = turn(x[j], rotation + j * K, 1);
        }
        if (flat) store(flat + j * K, x[j]);
        x[j] *= scale;
    }
    transpose(x);
#pragma GCC unroll 16
    for (int j = 0; j < VL; j++) store(to + j * TQ, x[j]);
}

/* Copy a tile of rows into columns, `to[c * TQ + i]`, times `scale`; and, if `flat`, side by side. Zeros behind. */
INLINE void pack_columns(float *to, float *flat, const float *from, int64_t row, int rows, const int K,
                         const float *rotation, float scale) {
    for (int i = 0; i < rows; i += VL)
        for (int c = 0; c < K; c += VL) {
            float *t = to + c * TQ + i, *f = flat ? flat + i * K + c : NULL;
            const float *x = from + i * row + c, *r = rotation ? rotation + i * K + c : NULL;
            if (i + VL > rows) columns_of(t, f, x, row, rows - i, K, r, scale);
            else if (r) columns_of(t, f, x, row, VL, K, r, scale);
            else columns_of(t, f, x, row, VL, K, NULL, scale);
        }
}

/* The way back: columns times `factor` (one a column, or NULL) and `scale` into rows, turned back. */
INLINE void unpack_columns(float *to, int64_t row, const float *from, int rows, const int K, const float *factor,
                           float scale, const float *rotation) {
    for (int i = 0; i < rows; i += VL)
        for (int c = 0; c < K; c += VL) {
            vf x[VL], f = factor ? load(factor + i) : all(scale);
#pragma GCC unroll 16
            for (int j = 0; j < VL; j++) x[j] = load(from + (c + j) * TQ + i) * f;
            transpose(x);
#pragma GCC unroll 16
            for (int j = 0; j < VL; j++)
                if (i + j < rows)
                    store(to + (i + j) * row + c,
                          rotation ? turn(x[j], rotation + (i + j) * K + c, -1) : x[j]);
        }
}

INLINE void unpack(float *to, int64_t row, const float *from, int64_t rows, const int K, float scale,
                   const float *rotation) {
    for (int64_t i = 0; i < rows; i++)
        for (int c = 0; c < K; c += VL) {
            vf x = load(from + i * K + c) * scale;
            store(to + i * row + c, rotation ? turn(x, rotation + i * K + c, -1) : x);
        }
}

/* ---- scores to weights ------------------------------------------------------------------------------------ */

#define MASKED -1e30f

/* Which lanes of the vector at query `i` see key `j`. */
INLINE vi sees(int64_t i, int64_t j, int64_t back, int64_t ahead) {
    vi lane;
    for (int x = 0; x < VL; x++) lane[x] = x;
    int32_t first = (int32_t)(j - ahead - i), last = (int32_t)(j + back - i);
    return (vi)(lane >= first) & (vi)(lane <= last);
}

/* Step of the online softmax for N vectors of queries and one tile of keys: S becomes weights; the largest score, the
 * sum and the answers so far are brought along. The N chains of the two loops run side by side. */
INLINE void softmax_vectors(const int N, float *S, int keys, int64_t i0, int64_t j0, int64_t back, int64_t ahead,
                            const int masked, float *max, float *sum, float *O, const int K, int first) {
    vf top[4], total[4], shrink[4];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) top[n] = load(max + n * VL);
    for (int j = 0; j < keys; j++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            vf s = load(S + j * TQ + n * VL);
            if (masked) {
                s = pick(sees(i0 + n * VL, j0 + j, back, ahead), s, all(MASKED));
                store(S + j * TQ + n * VL, s);
            }
            top[n] = at_least(top[n], s);
        }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        shrink[n] = exp2v(load(max + n * VL) - top[n]);
        total[n] = load(sum + n * VL) * shrink[n];
        store(max + n * VL, top[n]);
    }
    for (int j = 0; j < keys; j++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            vf p = exp2v(load(S + j * TQ + n * VL) - top[n]);
            if (masked) p = pick(sees(i0 + n * VL, j0 + j, back, ahead), p, all(0));
            store(S + j * TQ + n * VL, p);
            total[n] += p;
        }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) store(sum + n * VL, total[n]);
    if (!first)
        for (int c = 0; c < K; c++)
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) store(O + c * TQ + n * VL, load(O + c * TQ + n * VL) * shrink[n]);
}

INLINE void softmax_tile(float *S, int keys, int N, int64_t i0, int64_t j0, int64_t back, int64_t ahead,
                         const int masked, float *max, float *sum, float *O, const int K, int first) {
    for (; N > 0; N -= NMAX, S += NMAX * VL, max += NMAX * VL, sum += NMAX * VL, O += NMAX * VL, i0 += NMAX * VL)
#define VECTORS(n) softmax_vectors(n, S, keys, i0, j0, back, ahead, masked, max, sum, O, K, first)
        switch (N) {
        case 1: VECTORS(1); break;
#if NMAX == 2
        default: VECTORS(2); break;
#else
        case 2: VECTORS(2); break;
        case 3: VECTORS(3); break;
        default: VECTORS(4); break;
#endif
        }
#undef VECTORS
}

/* Value and slope of an activation. */
INLINE vf activate(const int kind, vf x, vf *slope) {
    switch (kind) {
    case GELU: { /* Phi by Abramowitz and Stegun 7.1.26, |error| 8e-8; its exponential is the density too */
        vf z = at_most(all(14.0f), pick(x < 0, -x, x)) * 0.70710678f;
        vf e = exp2v(z * z * -1.4426950f), t = inverse(1.0f + 0.3275911f * z);
        vf tail = 1.061405429f * t - 1.453152027f;
        tail = tail * t + 1.421413741f;
        tail = tail * t - 0.284496736f;
        tail = (tail * t + 0.254829592f) * t * e * 0.5f;
        vf below = pick(x < 0, tail, 1.0f - tail);
        *slope = below + x * e * 0.39894228f;
        return x * below;
    }
    case GELU_TANH: { /* x sigmoid(2 u) */
        vf u = at_most(all(40.0f), at_least(all(-40.0f), x * (0.79788456f + 0.035677408f * x * x)));
        vf s = inverse(1.0f + exp2v(u * -2.8853901f));
        *slope = s + x * s * (1.0f - s) * (1.5957691f + 0.21406445f * x * x);
        return x * s;
    }
    case GELU_TAYLOR: {
        vf y = x * x, half = all(0.5f);
        *slope = half + x * 0.39894228f * (2.0f - y * (2.0f / 3.0f) + y * y * 0.15f);
        return x * (half + x * 0.39894228f * (1.0f - y * (1.0f / 6.0f) + y * y * 0.025f));
    }
    case RELU:
        *slope = pick(x > 0, all(1), all(0));
        return at_least(all(0), x);
    case RELU_SQUARED: {
        vf y = at_least(all(0), x);
        *slope = 2.0f * y;
        return y * y;
    }
    case SILU: {
        vf s = inverse(1.0f + exp2v(at_most(all(126.0f), x * -1.4426950f)));
        *slope = s * (1.0f + x * (1.0f - s));
        return x * s;
    }
    case HARDSWISH: {
        vf gate = at_most(all(1), at_least(all(0), x * (1.0f / 6.0f) + 0.5f));
        *slope = pick((vi)(x > -3.0f) & (vi)(x < 3.0f), x * (1.0f / 3.0f) + 0.5f, gate);
        return x * gate;
    }
    default:
        *slope = all(1);
        return x;
    }
}

/* S = Act(S) and, with `dS`, dS *= Act'(S). */
static void activation_tile(int kind, float *S, float *dS, int keys, int N) {
#define CASE(name)                                                                  \
    case name:                                                                      \
        for (int j = 0; j < keys; j++)                                              \
            for (int n = 0; n < N; n++) {                                           \
                vf slope, y = activate(name, load(S + j * TQ + n * VL), &slope);    \
                store(S + j * TQ + n * VL, y);                                      \
                if (dS) store(dS + j * TQ + n * VL, load(dS + j * TQ + n * VL) * slope); \
            }                                                                       \
        break;
    switch (kind) {
        CASE(GELU) CASE(GELU_TANH) CASE(GELU_TAYLOR) CASE(RELU) CASE(RELU_SQUARED) CASE(SILU) CASE(HARDSWISH)
    default:
        break;
        case IDENTITY:
            if (dS) break; /* slope 1 */
    }
#undef CASE
}

/* ---- one task of one head --------------------------------------------------------------------------------- */

static __thread Workspace *workspace;

static int reserve(int64_t floats) {
    if (!workspace) {
        if (!(workspace = aligned_alloc(64, (sizeof(Workspace) + 63) & ~(size_t)63))) return 0;
        workspace->keys = NULL, workspace->held = 0;
    }
    if (workspace->held < floats) {
        free(workspace->keys);
        workspace->keys = aligned_alloc(64, ((size_t)floats * sizeof(float) + 63) & ~(size_t)63);
        workspace->held = workspace->keys ? floats : 0;
    }
    return workspace->keys != NULL;
}

/* Keys that a tile of queries sees, from a multiple of 8. */
INLINE void visible(const Problem *p, int64_t i0, int rows, int64_t keys, int64_t *lo, int64_t *hi) {
    *lo = i0 > p->back ? (i0 - p->back) & ~7 : 0;
    *hi = i0 + rows - 1 < keys - p->ahead ? i0 + rows + p->ahead : keys;
}

/* Note what comes after the queries i0 to i0 + rows of unit u: the next queries, and a share of the next task's keys. */
INLINE void foresee(Workspace *w, const Problem *p, const Unit *units, const Task *task, int64_t u, int64_t i0, int rows,
                    int64_t h, const Task *next, int64_t next_h, const int back) {
    int64_t n = units[u].n, q0 = units[u].q0 + i0 + rows, o0 = units[u].o0 + i0 + rows, queries = n - i0 - rows;
    int last = u + 1 == task->last, count = 0;
#define STRIP(base, stride, count_) w->strips[count++] = (Strip){base, stride, count_}
    if (last && next) {
        int64_t all = next->n < 512 ? next->n : 512, k0 = next->k0 + all * i0 / n, keys = all * (i0 + rows) / n - all * i0 / n;
        STRIP(p->k + next_h * p->k_head + k0 * p->k_row, p->k_row, keys);
        STRIP(p->v + next_h * p->v_head + k0 * p->v_row, p->v_row, keys);
        if (back) STRIP(p->dk + next_h * p->dk_head + k0 * p->dk_row, p->dk_row, keys);
        if (back) STRIP(p->dv + next_h * p->dv_head + k0 * p->dv_row, p->dv_row, keys);
    }
    if (queries <= 0) {
        const Unit *after = !last ? units + u + 1 : next && next->first < next->last ? units + next->first : NULL;
        if (last) h = next_h;
        if (after) q0 = after->q0, o0 = after->o0, queries = after->n;
    }
    if (queries > TQ) queries = TQ;
    int64_t row = p->heads * p->width, at = h * p->width + o0 * row;
    STRIP(p->q + h * p->q_head + q0 * p->q_row, p->q_row, queries);
    STRIP(p->out + at, row, queries);
    if (back) STRIP(p->grad + at, row, queries);
    if (back) STRIP(p->dq + h * p->dq_head + o0 * p->dq_row, p->dq_row, queries);
    w->count = count, w->rate = n <= 64 ? 3 : n <= 160 ? 2 : 1;
#undef STRIP
}

/* A tile of keys, j0 to end, and the vectors of queries, v0 to v1, that see any of them. */
typedef struct {
    int64_t j0, end;
    int v0, v1, masked;
} Span;

/* The tile that begins at j0. At the edges of a window, where a query sees one key and not the next, tiles are short
 * and leave out the vectors that see nothing, so that little is computed for the mask to hide. */
INLINE Span span(const Problem *p, int64_t i0, int rows, int64_t j0, int64_t hi) {
    int64_t all_see = (i0 + rows - 1 - p->back + 7) & ~7, first_sees = (i0 + p->ahead + 1) & ~7;
    Span s = {j0, j0 + TK, 0, (rows + VL - 1) / VL, j0 < all_see || j0 >= first_sees};
    if (s.masked) s.end = j0 + EDGE;
    if (j0 < all_see && all_see < s.end) s.end = all_see;
    if (j0 < first_sees && first_sees < s.end) s.end = first_sees;
    if (hi < s.end) s.end = hi;
    if (s.masked) {
        int64_t first = j0 - p->ahead - i0, last = s.end - 1 + p->back - i0;
        if (first > 0) s.v0 = (int)(first / VL);
        if (last / VL + 1 < s.v1) s.v1 = (int)(last / VL + 1);
    }
    return s;
}

INLINE void forward(const Problem *p, const Task *task, const Unit *units, int64_t h, const Task *next, int64_t next_h,
                    const int K) {
    Workspace *w = workspace;
    int64_t keys = task->n, padded = (keys + 7) & ~7;
    float *k = w->keys, *v = k + padded * K;
    int softmax = !p->activation;
    const float *turn_k = p->rotation ? p->rotation + task->k0 * K : NULL;
    pack(k, p->k + h * p->k_head + task->k0 * p->k_row, p->k_row, keys, K, turn_k);
    pack(v, p->v + h * p->v_head + task->k0 * p->v_row, p->v_row, keys, K, turn_k);
    for (int64_t u = task->first; u < task->last; u++)
        for (int64_t i0 = 0; i0 < units[u].n; i0 += TQ) {
            int64_t q0 = units[u].q0 + i0, o0 = units[u].o0 + i0, lo, hi;
            int rows = (int)(units[u].n - i0 < TQ ? units[u].n - i0 : TQ), N = (rows + VL - 1) / VL;
            pack_columns(w->QT, NULL, p->q + h * p->q_head + q0 * p->q_row, p->q_row, rows, K,
                         p->rotation ? p->rotation + q0 * K : NULL, (float)(p->scale * (softmax ? M_LOG2E : 1)));
            foresee(w, p, units, task, u, i0, rows, h, next, next_h, 0);
            visible(p, i0, rows, keys, &lo, &hi);
            for (int n = 0; n < N; n++) store(w->max + n * VL, all(MASKED)), store(w->sum + n * VL, all(0));
            int fresh = lo < hi && !span(p, i0, rows, lo, hi).masked; /* the first tile serves all queries */
            if (!fresh) memset(w->OT, 0, sizeof(float) * TQ * K);
            for (int64_t j0 = lo; j0 < hi; fresh = 0) {
                Span t = span(p, i0, rows, j0, hi);
                int n = (int)(t.end - j0), N = t.v1 - t.v0, at = t.v0 * VL;
                float *S = w->S + at, *O = w->OT + at;
                product(w, K, (n + 7) & ~7, N, k + j0 * K, K, 1, w->QT + at, TQ, S, TQ, K, FRESH, NULL);
                if (!softmax) activation_tile(p->activation[h], S, NULL, n, N);
                else if (t.masked)
                    softmax_tile(S, n, N, i0 + at, j0, p->back, p->ahead, 1, w->max + at, w->sum + at, O, K, fresh);
                else softmax_tile(S, n, N, 0, 0, 0, 0, 0, w->max + at, w->sum + at, O, K, fresh);
                if (fresh) product(w, K, K, N, v + j0 * K, 1, K, S, TQ, O, TQ, n, FRESH, NULL);
                else product(w, K, K, N, v + j0 * K, 1, K, S, TQ, O, TQ, n, ADD, NULL);
                j0 = t.end;
            }
            if (softmax)
                for (int n = 0; n < N; n++) {
                    /* a query all of whose scores are minus infinity has no answer */
                    vf top = load(w->max + n * VL), sum = hi > lo ? load(w->sum + n * VL) : all(1);
                    if (hi > lo) sum = pick(top <= MASKED, all(NAN), sum);
                    store(w->sum + n * VL, 1.0f / sum);
                    store(w->lse + n * VL, top + log2v(sum));
                }
            unpack_columns(p->out + (o0 * p->heads + h) * K, p->heads * K, w->OT, rows, K, softmax ? w->sum : NULL,
                           1, NULL);
            if (softmax) memcpy(p->lse + h * p->total_q + o0, w->lse, rows * sizeof(float));
        }
}

/* D = sum over c of dO * O, for each query of a tile. */
INLINE void row_products(float *D, const float *grad, const float *out, int64_t row, int rows, const int K) {
    for (int i = 0; i < rows; i += VL) {
        vf x[VL], sum = all(0);
#pragma GCC unroll 16
        for (int j = 0; j < VL; j++) {
            x[j] = all(0);
            if (i + j < rows)
                for (int c = 0; c < K; c += VL) x[j] += load(grad + (i + j) * row + c) * load(out + (i + j) * row + c);
        }
        transpose(x);
#pragma GCC unroll 16
        for (int j = 0; j < VL; j++) sum += x[j];
        store(D + i, -sum);
    }
}

/* S = exp(S), dS = S dS. */
INLINE void softmax_slope(float *S, float *dS, int keys, int N, int64_t i0, int64_t j0, int64_t back, int64_t ahead,
                          const int masked) {
    for (int j = 0; j < keys; j++)
        for (int n = 0; n < N; n++) {
            float *s = S + j * TQ + n * VL, *d = dS + j * TQ + n * VL;
            vf x = exp2v(load(s));
            if (masked) x = pick(sees(i0 + n * VL, j0 + j, back, ahead), x, all(0));
            store(s, x);
            store(d, x * load(d));
        }
}

INLINE void backward(const Problem *p, const Task *task, const Unit *units, int64_t h, const Task *next, int64_t next_h,
                    const int K) {
    Workspace *w = workspace;
    int64_t keys = task->n, padded = (keys + 7) & ~7, row = p->heads * K;
    float *k = w->keys, *v = k + padded * K, *dk = v + padded * K, *dv = dk + padded * K;
    int softmax = !p->activation;
    const float *turn_k = p->rotation ? p->rotation + task->k0 * K : NULL;
    pack(k, p->k + h * p->k_head + task->k0 * p->k_row, p->k_row, keys, K, turn_k);
    pack(v, p->v + h * p->v_head + task->k0 * p->v_row, p->v_row, keys, K, turn_k);
    memset(dk, 0, sizeof(float) * 2 * padded * K);
    for (int64_t u = task->first; u < task->last; u++)
        for (int64_t i0 = 0; i0 < units[u].n; i0 += TQ) {
            int64_t q0 = units[u].q0 + i0, o0 = units[u].o0 + i0, lo, hi;
            int rows = (int)(units[u].n - i0 < TQ ? units[u].n - i0 : TQ), N = (rows + VL - 1) / VL;
            const float *turn_q = p->rotation ? p->rotation + q0 * K : NULL, *grad = p->grad + (o0 * p->heads + h) * K;
            pack_columns(w->QT, w->Q, p->q + h * p->q_head + q0 * p->q_row, p->q_row, rows, K, turn_q,
                         (float)(p->scale * (softmax ? M_LOG2E : 1)));
            pack_columns(w->GT, w->G, grad, row, rows, K, NULL, 1);
            if (softmax) {
                row_products(w->D, grad, p->out + (o0 * p->heads + h) * K, row, rows, K);
                for (int i = 0; i < N * VL; i++) w->lse[i] = i < rows ? -p->lse[h * p->total_q + o0 + i] : 0;
            }
            foresee(w, p, units, task, u, i0, rows, h, next, next_h, 1);
            visible(p, i0, rows, keys, &lo, &hi);
            int fresh = lo < hi && !span(p, i0, rows, lo, hi).masked;
            if (!fresh) memset(w->OT, 0, sizeof(float) * TQ * K);
            for (int64_t j0 = lo; j0 < hi; fresh = 0) {
                Span t = span(p, i0, rows, j0, hi);
                int n = (int)(t.end - j0), N = t.v1 - t.v0, at = t.v0 * VL, R = rows < t.v1 * VL ? rows - at : N * VL;
                int64_t n8 = (n + 7) & ~7;
                float *S = w->S + at, *dS = w->dS + at, *O = w->OT + at;
                const float *kt = k + j0 * K, *vt = v + j0 * K;
                if (softmax) {
                    product(w, K, n8, N, kt, K, 1, w->QT + at, TQ, S, TQ, K, FROM, w->lse + at);
                    product(w, K, n8, N, vt, K, 1, w->GT + at, TQ, dS, TQ, K, FROM, w->D + at);
                    if (t.masked) softmax_slope(S, dS, n, N, i0 + at, j0, p->back, p->ahead, 1);
                    else softmax_slope(S, dS, n, N, 0, 0, 0, 0, 0);
                } else {
                    product(w, K, n8, N, kt, K, 1, w->QT + at, TQ, S, TQ, K, FRESH, NULL);
                    product(w, K, n8, N, vt, K, 1, w->GT + at, TQ, dS, TQ, K, FRESH, NULL);
                    activation_tile(p->activation[h], S, dS, n, N);
                }
                /* rows n to n8 are other tiles' business: their weights must not count */
                for (int64_t j = n; j < n8; j++)
                    for (int i = 0; i < N; i++) store(S + j * TQ + i * VL, all(0)), store(dS + j * TQ + i * VL, all(0));
                product(w, K, n8, K / VL, S, TQ, 1, w->G + at * K, K, dv + j0 * K, K, R, ADD, NULL);
                product(w, K, n8, K / VL, dS, TQ, 1, w->Q + at * K, K, dk + j0 * K, K, R, ADD, NULL);
                if (fresh) product(w, K, K, N, kt, 1, K, dS, TQ, O, TQ, n, FRESH, NULL);
                else product(w, K, K, N, kt, 1, K, dS, TQ, O, TQ, n, ADD, NULL);
                j0 = t.end;
            }
            unpack_columns(p->dq + h * p->dq_head + o0 * p->dq_row, p->dq_row, w->OT, rows, K, NULL, (float)p->scale,
                           turn_q);
        }
    unpack(p->dk + h * p->dk_head + task->k0 * p->dk_row, p->dk_row, dk, keys, K, (float)p->scale, turn_k);
    unpack(p->dv + h * p->dv_head + task->k0 * p->dv_row, p->dv_row, dv, keys, K, 1, turn_k);
}

typedef void Step(const Problem *, const Task *, const Unit *, int64_t h, const Task *next, int64_t next_h);

#define WIDTH(K)                                                                                                   \
    static void forward_##K(const Problem *p, const Task *t, const Unit *u, int64_t h, const Task *n, int64_t nh) { \
        forward(p, t, u, h, n, nh, K);                                                                             \
    }                                                                                                              \
    static void backward_##K(const Problem *p, const Task *t, const Unit *u, int64_t h, const Task *n, int64_t nh) { \
        backward(p, t, u, h, n, nh, K);                                                                            \
    }
WIDTH(16) WIDTH(32) WIDTH(64) WIDTH(128)

static Step *step_for(int64_t width, int back) {
    switch (width) {
    case 16: return back ? backward_16 : forward_16;
    case 32: return back ? backward_32 : forward_32;
    case 64: return back ? backward_64 : forward_64;
    case 128: return back ? backward_128 : forward_128;
    default: return NULL;
    }
}

/* ---- tasks ------------------------------------------------------------------------------------------------ */

typedef struct {
    const Problem *problem;
    Step *step;
    Task *tasks;
    Unit *units;
    int64_t count, floats; /* tasks; workspace of a thread */
    double cost;
    int threads;
    atomic_llong next;
    atomic_int failed;
} Job;

static int64_t start(const int64_t *offsets, int64_t length, int64_t row) { return offsets ? offsets[row] : row * length; }

static void add_task(Job *job, int64_t k0, int64_t n, int64_t first, int64_t last) {
    double queries = 0;
    for (int64_t u = first; u < last; u++) queries += (double)job->units[u].n;
    job->tasks[job->count++] = (Task){k0, n, first, last, queries * (double)n};
    job->cost += queries * (double)n;
    int64_t floats = ((n + 7) & ~7) * job->problem->width;
    if (floats > job->floats) job->floats = floats;
}

static int plan(Job *job) {
    const Problem *p = job->problem;
    int64_t blocks = 0, units = 0;
    if (p->block)
        for (int64_t r = 0; r < p->q_rows; r++) {
            int64_t n = p->q_offsets[r + 1] - p->q_offsets[r];
            if (n) blocks += (n + p->shift + p->block - 1) / p->block;
        }
    job->tasks = malloc(sizeof(Task) * (size_t)(blocks + p->k_rows + 1));
    job->units = malloc(sizeof(Unit) * (size_t)(blocks + p->q_rows + 1));
    if (!job->tasks || !job->units) return 0;
    if (p->block) {
        for (int64_t r = 0; r < p->q_rows; r++)
            for (int64_t a = p->q_offsets[r], end = p->q_offsets[r + 1], b = a - p->shift + p->block; a < end;
                 a = b, b += p->block) {
                int64_t n = (b < end ? b : end) - a;
                job->units[units] = (Unit){a, n, a};
                add_task(job, a, n, units, units + 1);
                units++;
            }
        return 1;
    }
    /* rows of queries, in the order of the keys that they read */
    int64_t *next = calloc((size_t)p->k_rows + 1, sizeof(int64_t));
    if (!next) return 0;
    for (int64_t r = 0; r < p->q_rows; r++) next[(p->request ? p->request[r] : r) + 1]++;
    for (int64_t r = 0; r < p->k_rows; r++) next[r + 1] += next[r];
    for (int64_t r = 0; r < p->q_rows; r++) {
        int64_t q0 = p->shared_q ? 0 : start(p->q_offsets, p->q_len, r);
        int64_t n = p->q_offsets ? p->q_offsets[r + 1] - q0 : p->q_len;
        job->units[next[p->request ? p->request[r] : r]++] = (Unit){q0, n, p->shared_q ? r * p->q_len : q0};
    }
    for (int64_t r = 0; r < p->k_rows; r++) {
        int64_t k0 = start(p->k_offsets, p->k_len, r);
        add_task(job, k0, start(p->k_offsets, p->k_len, r + 1) - k0, r ? next[r - 1] : 0, next[r]);
    }
    free(next);
    return 1;
}

static int heavier(const void *a, const void *b) {
    double x = ((const Task *)a)->cost, y = ((const Task *)b)->cost;
    return (x < y) - (x > y);
}

static void work(Job *job) {
    int64_t heads = job->problem->heads;
    if (!reserve(job->floats)) {
        job->failed = 1;
        return;
    }
    /* all heads of a task at once where there are tasks enough: their rows lie side by side */
    int64_t total = job->count * heads, grain = job->count >= 16 * job->threads ? heads : 1, i;
    while (!job->failed && (i = atomic_fetch_add(&job->next, grain)) < total)
        for (int64_t end = i + grain; i < end; i++) {
            int64_t then = i + 1 < end ? i + 1 : i + 1 + (job->threads - 1) * grain; /* most likely */
            job->step(job->problem, job->tasks + i / heads, job->units, i % heads,
                      then < total ? job->tasks + then / heads : NULL, then % heads);
        }
}

/* ---- threads ---------------------------------------------------------------------------------------------- */

#define MOST_THREADS 256

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    int threads, wanted, running; /* started; still to join the job; at work on it */
    Job *job;
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, NULL};
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;

static void *worker(void *unused) {
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.wanted) pthread_cond_wait(&pool.wake, &pool.lock);
        Job *job = pool.job;
        pool.wanted--, pool.running++;
        pthread_mutex_unlock(&pool.lock);
        work(job);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0) pthread_cond_signal(&pool.done);
    }
    return NULL;
}

/* Threads do not live on in a forked process. */
static void after_fork(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_mutex_init(&busy, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.threads = pool.wanted = pool.running = 0;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

static void run(Job *job, int threads) {
    /* another caller has the pool, or there is too little to share: alone */
    if (threads < 2 || pthread_mutex_trylock(&busy) != 0) {
        work(job);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    while (pool.threads < threads - 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, NULL) != 0) break;
        pthread_detach(thread);
        pool.threads++;
    }
    pool.job = job;
    pool.wanted = pool.threads < threads - 1 ? pool.threads : threads - 1;
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    work(job);
    pthread_mutex_lock(&pool.lock);
    pool.wanted = 0; /* who has not come yet need not */
    while (pool.running) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&busy);
}

/* ---- fresh memory ----------------------------------------------------------------------------------------- */

#define HUGE ((uintptr_t)1 << 21)

/* Ask for large pages under an answer that will be written from end to end: the first touch of fresh memory, page by
 * small page, can take as long as the products. A hint; where it is not taken nothing changes. */
static void large_pages(float *at, int64_t floats) {
#ifdef MADV_HUGEPAGE
    uintptr_t first = ((uintptr_t)at + HUGE - 1) & ~(HUGE - 1), last = (uintptr_t)(at + floats) & ~(HUGE - 1);
    if (at && first < last) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)at, (void)floats;
#endif
}

static void prepare(const Problem *p, int back) {
    int64_t keys = start(p->k_offsets, p->k_len, p->k_rows);
    if (!back) large_pages(p->out, p->total_q * p->heads * p->width);
    else {
        large_pages(p->dq, p->total_q * p->dq_row);
        large_pages(p->dk, keys * p->dk_row);
        large_pages(p->dv, keys * p->dv_row);
    }
}

/* ---- the door --------------------------------------------------------------------------------------------- */

/* Returns 0, or 1 for a width that is not served, or 2 where memory is short. */
int opengem_attention(const Problem *problem, int backward, int threads) {
    Job job = {.problem = problem, .step = step_for(problem->width, backward)};
    if (!job.step) return 1;
    int good = plan(&job);
    if (good) {
        prepare(problem, backward);
        job.floats *= backward ? 4 : 2;
        if (job.floats == 0) job.floats = 16;
        double flops = 4.0 * (double)problem->width * (double)problem->heads * job.cost;
        threads = flops < 1e6 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
        job.threads = threads;
        if (threads > 1) qsort(job.tasks, (size_t)job.count, sizeof(Task), heavier);
        run(&job, threads);
    }
    free(job.tasks);
    free(job.units);
    return good && !job.failed ? 0 : 2;
}

/* Size of `Problem`, for the other side to check its copy. */
int64_t opengem_problem_size(void) { return (int64_t)sizeof(Problem); }
