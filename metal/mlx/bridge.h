//go:build mlx

// The interface of the bridge for Go: plain C, one function per operation. The
// bridge is bridge_arrays.cpp, bridge_ops.cpp, bridge_norm.cpp, bridge_slab.cpp,
// bridge_attend.cpp, bridge_step.cpp and bridge_recur.cpp; bridge_internal.h and bridge_kernel.h are
// what they share.
//
// Every function takes the owner that bridge_attach gave and refuses, before
// it touches the framework, any thread but the one that attached. No exception
// leaves a function; the text of a status is the caller's to free.
#ifndef METALFLEET_BRIDGE_H
#define METALFLEET_BRIDGE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BRIDGE_OK, BRIDGE_FAILED, BRIDGE_MEMORY, BRIDGE_THREAD };

// Types of numbers; the first three are those of package quant.
enum { BRIDGE_FLOAT32, BRIDGE_FLOAT16, BRIDGE_BFLOAT16, BRIDGE_WORDS, BRIDGE_BYTES };

// What quantised words are; those of small floats have scales of one byte and no
// biases.
enum { BRIDGE_AFFINE, BRIDGE_MXFP4, BRIDGE_MXFP8, BRIDGE_NVFP4 };

typedef struct {
  int32_t code;
  char *text;
} bridge_status;

// An array, evaluated or not. A slab of a cache: keys and values of requests
// that have room for equally many tokens.
typedef struct bridge_array bridge_array;
typedef struct bridge_slab bridge_slab;

// A new array and the bytes it has, or will have.
typedef struct {
  bridge_array *array;
  int64_t bytes;
  bridge_status status;
} bridge_made;

// The framework's own account, in bytes.
typedef struct {
  int64_t active, pooled, peak;
} bridge_gauges;

typedef struct {
  uint64_t owner;
  int32_t gpu, cuda;
  int64_t memory_limit;
  bridge_status status;
} bridge_attached;

// What the framework says of itself, a fact a line: its name, a blank, its
// value. The text is the caller's to free.
typedef struct {
  char *text;
  bridge_status status;
} bridge_said;
bridge_said bridge_about(uint64_t owner);

// Thread and memory.
bridge_attached bridge_attach(void);
bridge_status bridge_detach(uint64_t owner);
bridge_status bridge_check(uint64_t owner);
uint64_t bridge_entered(void); // calls that were let in, by all threads
bridge_status bridge_limit(uint64_t owner, int64_t memory, int64_t pooled);
bridge_status bridge_whole(uint64_t owner, int64_t bytes);
bridge_status bridge_halve(uint64_t owner, int64_t from);
bridge_status bridge_trim(uint64_t owner);
bridge_status bridge_shrink(uint64_t owner, int64_t to, int64_t limit);
bridge_status bridge_measure(uint64_t owner, bridge_gauges *out);
bridge_status bridge_reset_peak(uint64_t owner);

// Arrays from and to the host.
bridge_made bridge_floats(uint64_t owner, const float *values, const int32_t *shape, int32_t dims);
bridge_made bridge_ids(uint64_t owner, const int32_t *ids, int32_t n);
bridge_made bridge_join_ids(uint64_t owner, bridge_array *a, const int32_t *rows, int32_t wanted, const int32_t *ids, int32_t n);
bridge_made bridge_raw(uint64_t owner, int32_t type, const int32_t *shape, int32_t dims, void **memory);
bridge_made bridge_settle(uint64_t owner, bridge_array *a, int32_t parts);
bridge_made bridge_join(uint64_t owner, bridge_array **parts, int32_t n);
bridge_made bridge_span(uint64_t owner, bridge_array *a, int32_t axis, int32_t from, int32_t to, int32_t now);
bridge_status bridge_release(uint64_t owner, bridge_array **arrays, int32_t n, int32_t last, bridge_gauges *out);
bridge_status bridge_evaluate(uint64_t owner, bridge_array **arrays, int32_t n, bridge_slab **slabs, int32_t m, int32_t wait);
bridge_status bridge_read_floats(uint64_t owner, bridge_array *a, float *dst, int64_t n);
bridge_status bridge_read_ids(uint64_t owner, bridge_array *a, int32_t *dst, int64_t n);

// Operations; arrays of numbers are [T, D].
bridge_made bridge_embed(uint64_t owner, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode, int32_t type, bridge_array *ids);
bridge_status bridge_few_rows(uint64_t owner, int32_t type, int32_t group, int32_t bits, int32_t out, int32_t in, int32_t *has);
bridge_made bridge_linear(uint64_t owner, bridge_array *x, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode);
// The softmax of scores, who has the k largest of them, and their shares.
bridge_made bridge_softmax(uint64_t owner, bridge_array *scores);
bridge_made bridge_largest(uint64_t owner, bridge_array *x, int32_t k);
bridge_made bridge_shares(uint64_t owner, bridge_array *x, bridge_array *chosen, int32_t k, int32_t normalized, float least, bridge_array *each);
bridge_made bridge_top_shares(uint64_t owner, bridge_array *scores, bridge_array *chosen, int32_t k);
// How experts are chosen: their weights, and the weights by which they are chosen.
typedef struct {
  bridge_array *bias, *each; // or null
  int32_t groups, top_groups, sigmoid, pairs;
  int32_t k, normalized;
  // rounded: weights and shares have the type of the scores.
  int32_t rounded;
  float least, scale;
} bridge_router;
// Ids and shares by one kernel; no arrays where there is none for these scores.
bridge_status bridge_route(uint64_t owner, bridge_array *scores, const bridge_router *router, bridge_made *out);
// Ids and shares by SparseMixer.
bridge_status bridge_mix(uint64_t owner, bridge_array *scores, int32_t k, float jitter, bridge_made *out);
bridge_made bridge_weights(uint64_t owner, bridge_array *scores, int32_t sigmoid);
bridge_made bridge_wanted(uint64_t owner, bridge_array *weights, const bridge_router *router);
bridge_made bridge_linear_of(uint64_t owner, bridge_array *x, bridge_array *chosen, int32_t experts, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode);
// Two products at once: a matrix is its words, scales and biases. No arrays where there
// is no kernel for them.
bridge_status bridge_linear_of_two(uint64_t owner, bridge_array *x, bridge_array *chosen, int32_t experts, bridge_array **one, bridge_array **two, int32_t group, int32_t bits, int32_t mode, bridge_made *out);
bridge_made bridge_linear_each(uint64_t owner, bridge_array *x, int32_t heads, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode);
bridge_made bridge_combine(uint64_t owner, bridge_array *y, bridge_array *shares);
bridge_made bridge_linear_bias(uint64_t owner, bridge_array *x, bridge_array *w, bridge_array *bias);
bridge_made bridge_rows(uint64_t owner, bridge_array *x, const int32_t *rows, int32_t n);
bridge_made bridge_place(uint64_t owner, bridge_array *x, const int32_t *rows, int32_t n, bridge_array *y);
bridge_made bridge_argmax(uint64_t owner, bridge_array *x, int32_t width);
bridge_made bridge_add(uint64_t owner, bridge_array *a, bridge_array *b);
bridge_made bridge_multiply(uint64_t owner, bridge_array *a, bridge_array *b);
bridge_made bridge_add_bias(uint64_t owner, bridge_array *x, bridge_array *bias);
bridge_made bridge_silu(uint64_t owner, bridge_array *x);
bridge_made bridge_swiglu(uint64_t owner, bridge_array *gate, bridge_array *up);
bridge_made bridge_geglu(uint64_t owner, bridge_array *gate, bridge_array *up);
bridge_made bridge_clamped_swiglu(uint64_t owner, bridge_array *gate, bridge_array *up, float alpha, float limit);
bridge_made bridge_limited_swiglu(uint64_t owner, bridge_array *gate, bridge_array *up, float limit);
bridge_made bridge_softplus(uint64_t owner, bridge_array *x);
bridge_made bridge_relu2(uint64_t owner, bridge_array *x);
bridge_made bridge_xielu(uint64_t owner, bridge_array *x, float positive, float negative, float beta, float eps);
bridge_made bridge_exceed(uint64_t owner, bridge_array *x, float by);
bridge_made bridge_mix_runs(uint64_t owner, bridge_array *x, bridge_array *by, int32_t n, int32_t m);
bridge_made bridge_level(uint64_t owner, bridge_array *x, bridge_array *like, float least);
bridge_made bridge_scale_shift(uint64_t owner, bridge_array *x, float scale, float shift);
bridge_made bridge_rms_norm(uint64_t owner, bridge_array *x, bridge_array *weight, float eps);
bridge_made bridge_part(uint64_t owner, bridge_array *x, int32_t run, int32_t from, int32_t to);
bridge_made bridge_runs(uint64_t owner, bridge_array **parts, int32_t count, int32_t n);
bridge_made bridge_sigmoid_gate(uint64_t owner, bridge_array *x, bridge_array *gate);
bridge_made bridge_add_gated(uint64_t owner, bridge_array *y, bridge_array *x, bridge_array *gate);
bridge_made bridge_rms_norm_gate(uint64_t owner, bridge_array *x, bridge_array *gate, bridge_array *weight, float eps);
bridge_made bridge_mean(uint64_t owner, bridge_array *x, const int32_t *lengths, int32_t n, const float *mask);
bridge_made bridge_unit(uint64_t owner, bridge_array *x);

// How heads are turned. Periods, if given, stand in for base: one number for
// each pair, the reciprocal of its frequency.
typedef struct {
  int32_t head, size, interleaved;
  float base, scale, magnitude;
} bridge_rope_spec;
bridge_made bridge_rope(uint64_t owner, bridge_array *x, const int32_t *positions, const bridge_rope_spec *spec, const float *periods, const float *growth);

// Caches. A slab has slots numbered from 0; move gives the request in a slot of
// from (or a new one, if from is null) the slot after the last of to, and
// closes the gap it leaves; remove closes the gap of one that ended. Slide moves
// length tokens of a slot, from token from on, to its first.
// Of keys a head has size elements, and of values value_size; 0 where values are
// within keys.
typedef struct {
  int32_t kv_heads, size, value_size, type;
} bridge_kv_shape;
bridge_slab *bridge_slab_new(int32_t layers, int32_t capacity, bridge_kv_shape shape);
bridge_status bridge_slab_move(uint64_t owner, bridge_slab *from, int32_t slot, bridge_slab *to);
bridge_status bridge_slab_free(uint64_t owner, bridge_slab *slab);
bridge_status bridge_slab_remove(uint64_t owner, bridge_slab *slab, int32_t slot);
bridge_status bridge_slab_slide(uint64_t owner, bridge_slab *slab, int32_t slot, int32_t from, int32_t length);
bridge_status bridge_type(uint64_t owner, bridge_array *a, int32_t *type);
// Save copies tokens [first, last) of a slot, layer by layer keys then values if
// they are stored, each [kvHeads, tokens, size], once they are computed; put writes such blocks,
// one after another from the first token on, and computes them.
bridge_status bridge_slab_save(uint64_t owner, bridge_slab *slab, int32_t slot, int32_t first, int32_t last, uint8_t *dst);
// stage starts such a copy into one array of the device's, and staged copies that out.
bridge_made bridge_slab_stage(uint64_t owner, bridge_slab *slab, int32_t slot, int32_t first, int32_t last);
bridge_status bridge_staged(uint64_t owner, bridge_array *a, uint8_t *dst);
typedef struct {
  const uint8_t *bytes;
  int32_t length;
} bridge_block;
bridge_status bridge_slab_put(uint64_t owner, bridge_slab *slab, int32_t slot, const bridge_block *blocks, int32_t n);
// How a segment is attended: as the framework does it, by products and a softmax
// that are operations of their own, or with others by the kernel of ragged.h.
enum { BRIDGE_FUSED, BRIDGE_PRODUCTS, BRIDGE_RAGGED };
typedef struct {
  bridge_slab *slab;
  // The segment has length tokens from start on. Of the segments of one token in
  // a slab, all are ragged or none.
  int32_t slot, start, length, how;
  // The segment consists of runs runs of the call, from first_run on.
  int32_t first_run, runs;
  // It sees no token before first.
  int32_t first;
  // Unless 0, the recurrent state before the last draft tokens is kept in a slot too.
  int32_t draft, kept_slot;
  bridge_slab *kept;
} bridge_segment;
// Whether the kernel of ragged.h is for keys of a type and size; if so it is
// compiled.
bridge_status bridge_ragged(uint64_t owner, int32_t type, int32_t size, int32_t *has);
typedef struct {
  int32_t layer, heads, kv_heads, size, value_size, window;
  float scale, cap; // cap is 0 where scores have no bound
  // The indexer's heads, their size, and how many tokens it selects; 0 without one.
  int32_t index_heads, index_size, index_topk;
  // Unless 0, segments were cut at the borders of chunks, so that a slot may have several.
  int32_t chunk;
} bridge_attend_spec;
// k is null where the layer holds the tokens of the step already, v where values are
// within keys.
bridge_made bridge_attend(uint64_t owner, bridge_array *q, bridge_array *k, bridge_array *v, bridge_array *index_q, bridge_array *index_weights, const bridge_attend_spec *spec, const float *sinks, const bridge_segment *segments, int32_t n,
                          const int32_t *runs); // positions, start and end of each: tokens of a run see one another

// Recurrent states lie in slabs as well: what the convolution saw in place of
// keys, [slots, 1, taps-1, channels], and in place of values the matrices,
// [slots, value_heads, key_size, value_size]. Join gives a new request, whose
// state is zeros, the slot after the last. Save and put copy what a slot holds,
// layer by layer.
typedef struct {
  int32_t key_heads, key_size, value_heads, value_size, taps;
} bridge_state_shape;
bridge_status bridge_state_join(uint64_t owner, bridge_slab *to, const bridge_state_shape *shape);
bridge_status bridge_state_save(uint64_t owner, bridge_slab *slab, int32_t slot, uint8_t *dst);
bridge_status bridge_state_put(uint64_t owner, bridge_slab *slab, int32_t slot, const uint8_t *src);
// How a state changes, as package tensor has it.
enum { BRIDGE_DELTA_RULE, BRIDGE_STATE_SPACE, BRIDGE_CONVOLUTION };
typedef struct {
  int32_t rule;
  float low, high;
  bridge_array *q, *k, *v, *decay, *beta, *kernel, *shift, *rate, *bias, *skip; // those that the rule does not have are null
} bridge_recur_operands;
bridge_made bridge_recur(uint64_t owner, const bridge_recur_operands *in, int32_t layer, const bridge_state_shape *shape, const bridge_segment *segments, int32_t n);

// Encoders: attention of every token to all of its segment, norms with a mean,
// and what stands between layers.
bridge_made bridge_attend_all(uint64_t owner, bridge_array *q, bridge_array *k, bridge_array *v, int32_t heads, float scale, const int32_t *lengths, int32_t n);
bridge_made bridge_layer_norm(uint64_t owner, bridge_array *x, bridge_array *weight, bridge_array *bias, float eps);
bridge_made bridge_gelu(uint64_t owner, bridge_array *x, int32_t tanh);
bridge_made bridge_tanh(uint64_t owner, bridge_array *x);
bridge_made bridge_clip(uint64_t owner, bridge_array *x, float low, float high);

#ifdef __cplusplus
}
#endif

#endif
