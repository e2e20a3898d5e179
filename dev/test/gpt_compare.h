// gpt_compare.h: how far one tensor is from another, as one number to hold against a limit and one line to read.
//
// Two measures, the larger counts: the Frobenius norm of the difference over that of the expected tensor, and the
// largest difference over the largest expected magnitude. Where nothing but zero is expected, nothing else is allowed.
#ifndef DEV_TEST_GPT_COMPARE_H
#define DEV_TEST_GPT_COMPARE_H

#include <math.h>

#include "gpt_fixture.h"
#include "test.h"

typedef struct {
    size_t elems;
    double error_squares, expected_squares, largest_error, largest_expected;
    size_t worst;  // where the largest difference is (the first NaN, if there is one)
    double worst_found, worst_expected;
    double projected;  // relative error estimated from a fixture's checks; 0 without
    double slack;      // the largest difference counts by this factor less (0: as it is)
} Difference;

static inline void difference_add(Difference *d, size_t index, double found, double expected) {
    double error = fabs(found - expected);
    d->elems++;
    d->error_squares += error * error;
    d->expected_squares += expected * expected;
    d->largest_expected = fmax(d->largest_expected, fabs(expected));
    if (d->elems == 1 || (!isnan(d->largest_error) && !(error <= d->largest_error))) {
        d->largest_error = error;
        d->worst = index;
        d->worst_found = found;
        d->worst_expected = expected;
    }
}

static inline double relative_to(double error, double scale) {
    if (error == 0) return 0;
    return scale > 0 ? error / scale : INFINITY;
}

static inline double difference_frobenius(const Difference *d) {
    return relative_to(sqrt(d->error_squares), sqrt(d->expected_squares));
}
static inline double difference_max(const Difference *d) { return relative_to(d->largest_error, d->largest_expected); }

// The measure that counts; NaN if anything is NaN, which no limit lets pass.
static inline double difference_relative(const Difference *d) {
    double f = difference_frobenius(d), m = difference_max(d) / (d->slack > 0 ? d->slack : 1);
    if (isnan(f) || isnan(m) || isnan(d->projected)) return NAN;
    return fmax(fmax(f, m), d->projected);
}

// ----------------------------------------------------------------------------------------------------------------
// Tables

static inline void difference_header(const char *title) {
    printf("  %s\n    %-20s %8s  %9s  %9s  %6s  %-18s %14s %14s\n", title, "tensor", "elements", "frobenius", "maximum",
           "share", "worst at", "found", "expected");
}

// Prints the line of one tensor and counts a failure if it is beyond `limit`. The worst element is given as
// [layer,row,col] for a tensor of rows x cols a layer (rows, cols 0: as one number).
static inline void difference_report(const Difference *d, const char *name, size_t rows, size_t cols, double limit) {
    char where[64];
    double relative = difference_relative(d);
    if (rows && cols)
        snprintf(where, sizeof where, "[%zu,%zu,%zu]", d->worst / (rows * cols), d->worst / cols % rows,
                 d->worst % cols);
    else snprintf(where, sizeof where, "[%zu]", d->worst);
    printf("    %-20s %8zu  %9.2e  %9.2e  %5.1f%%  %-18s %14.7e %14.7e\n", name, d->elems,
           fmax(difference_frobenius(d), d->projected), difference_max(d), 100 * relative / limit, where,
           d->worst_found, d->worst_expected);
    CHECK(relative <= limit, "%s is off by %.3g of its size, the limit is %.3g; worst at %s: %.9g, expected %.9g", name,
          relative, limit, where, d->worst_found, d->worst_expected);
}

// ----------------------------------------------------------------------------------------------------------------
// Against a fixture, which has samples of a tensor and checks over all of it. A tensor comes as a function from element
// index to value, so that both float and double ones, and ones with a column left out, can be held against it.

typedef double (*ElementAt)(const void *tensor, size_t index);

// Tensor `name` (stream number `stream`, `elems` elements) of the fixture against `element(tensor, i)`.
static inline Difference difference_from_fixture(const Fixture *fixture, const char *name, size_t stream, size_t elems,
                                                 ElementAt element, const void *tensor) {
    Difference d;
    char check_name[96];
    size_t stored;
    double sums[FIXTURE_PROJECTIONS] = {0}, squares = 0, error = 0;
    memset(&d, 0, sizeof d);
    const float *expected = (const float *)fixture_tensor(fixture, name, "F32", &stored);
    CHECK(stored == min_size(elems, FIXTURE_SAMPLES), "%s: %zu elements in the fixture for %zu", name, stored, elems);
    for (size_t k = 0; k < stored; k++) {
        size_t index = k;
        if (elems > FIXTURE_SAMPLES) index = fixture_hash(fixture->seed, FIXTURE_POSITIONS + stream, k) % elems;
        difference_add(&d, index, element(tensor, index), (double)expected[k]);
    }
    for (size_t i = 0; i < elems; i++) {
        uint64_t signs = fixture_hash(fixture->seed, FIXTURE_SIGNS + stream, i);
        double value = element(tensor, i);
        squares += value * value;
        for (size_t k = 0; k < FIXTURE_PROJECTIONS; k++) sums[k] += signs >> k & 1 ? -value : value;
    }
    snprintf(check_name, sizeof check_name, "%s.check", name);
    const double *check = (const double *)fixture_tensor(fixture, check_name, "F64", NULL);
    for (size_t k = 0; k < FIXTURE_PROJECTIONS; k++) error += (sums[k] - check[1 + k]) * (sums[k] - check[1 + k]);
    d.projected = relative_to(sqrt(error / (double)FIXTURE_PROJECTIONS), check[0]);
    d.projected = fmax(d.projected, relative_to(fabs(sqrt(squares) - check[0]), check[0]));
    if (isnan(squares)) d.projected = NAN;
    d.elems = elems;
    return d;
}

#endif
