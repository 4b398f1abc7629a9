/* An execution provider in C: Add, Mul, Relu and MatMul of float32, each node a part of its own.
 *
 *   cc -std=c11 -O2 -shared -fPIC -I FOLDER_OF_THE_HEADER provider.c -o libexample.so
 */
#include <orthrus_provider.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLOAT = 1, RANK = 8 };

typedef struct { const float *data; int rank; int64_t dims[RANK]; } array;
typedef struct { char op; int32_t input[2]; array operand[2]; } kernel; /* input -1: a constant */

static const char *why_not(const orthrus_graph *graph, const orthrus_node *node) {
  static const char *const known[] = {"Add", "Mul", "Relu", "MatMul"};
  size_t op = 0;
  while (op < 4 && strcmp(node->op_type, known[op])) op++;
  if (*node->domain || op == 4) return "it is none of Add, Mul, Relu, MatMul";
  if (op < 2 && node->version < 7) return "before version 7 it does not broadcast";
  for (size_t i = 0; i < node->input_count; i++) {
    const orthrus_value *value = &graph->values[node->inputs[i]];
    if (value->element_type != FLOAT) return "not all of its tensors are float32";
    if (value->rank < 0 || value->rank > RANK) return "the rank of a tensor is not known, or above 8";
    if (op == 3 && value->rank < 2) return "a vector is multiplied";
  }
  return NULL;
}

static int32_t claim(void *self, const orthrus_graph *graph, const orthrus_claims *claims,
                     orthrus_error *error) {
  (void)self, (void)error;
  for (size_t i = 0; i < graph->node_count; i++) {
    const char *why = why_not(graph, &graph->nodes[i]);
    if (!graph->nodes[i].free) continue;
    if (why) claims->refuse(claims, i, why);
    else claims->take(claims, i, (int32_t)i);
  }
  return ORTHRUS_OK;
}

static int32_t compile(void *self, const orthrus_graph *part, const orthrus_session *session,
                       orthrus_kernel *made, orthrus_error *error) {
  (void)self, (void)session, (void)error;
  const orthrus_node *node = part->nodes;
  kernel *k = calloc(1, sizeof *k);
  if (!k) return ORTHRUS_FAIL;
  k->op = node->op_type[0] == 'M' && node->op_type[1] == 'a' ? 'x' : node->op_type[0]; /* A, M, R, x */
  for (size_t i = 0; i < 2; i++) {
    int32_t number = node->inputs[i < node->input_count ? i : 0];
    const orthrus_value *value = &part->values[number];
    for (k->input[i] = (int32_t)part->input_count - 1; k->input[i] >= 0; k->input[i]--)
      if (part->inputs[k->input[i]] == number) break;
    if (!value->constant) continue;
    k->operand[i].data = value->data, k->operand[i].rank = value->rank; /* the data stays until `release` */
    memcpy(k->operand[i].dims, value->dims, (size_t)value->rank * sizeof(int64_t));
  }
  made->handle = k;
  return ORTHRUS_OK;
}

static int64_t dim(const array *x, int rank, int axis) { /* as if there were ones in front */
  return axis < rank - x->rank ? 1 : x->dims[axis - (rank - x->rank)];
}

static int64_t items(const array *x, int count) {
  return count ? x->dims[count - 1] * items(x, count - 1) : 1;
}

/* The shape of a result, whose last dimensions are a product's where `matrix` is 2; 0: there is none. */
static int shaped(array *y, const array *a, const array *b, int matrix) {
  y->rank = a->rank > b->rank ? a->rank : b->rank;
  for (int i = 0; i < y->rank - matrix; i++) {
    int64_t m = dim(a, y->rank, i), n = dim(b, y->rank, i);
    if (m != n && m != 1 && n != 1) return 0;
    y->dims[i] = m == 1 ? n : m;
  }
  if (!matrix) return 1;
  y->dims[y->rank - 2] = a->dims[a->rank - 2], y->dims[y->rank - 1] = b->dims[b->rank - 1];
  return a->dims[a->rank - 1] == b->dims[b->rank - 2];
}

/* Where the item `i` of a result's first `count` dimensions lies in `x`. */
static int64_t place(const array *x, const array *y, int count, int64_t i) {
  int64_t at = 0, step = 1;
  for (int axis = count - 1; axis >= 0; i /= y->dims[axis--]) {
    int64_t n = dim(x, y->rank, axis);
    if (n > 1) at += i % y->dims[axis] * step;
    step *= n;
  }
  return at;
}

static void compute(char op, float *out, const array *y, const array *a, const array *b) {
  int kept = op == 'x' ? y->rank - 2 : y->rank;
  int64_t rows = op == 'x' ? y->dims[kept] : 1, columns = op == 'x' ? y->dims[kept + 1] : 1;
  int64_t depth = op == 'x' ? a->dims[a->rank - 1] : 1;
  for (int64_t i = 0, count = items(y, kept); i < count; i++) {
    const float *p = a->data + place(a, y, kept, i) * rows * depth;
    const float *q = b->data + place(b, y, kept, i) * depth * columns;
    for (int64_t m = 0; m < rows; m++)
      for (int64_t n = 0; n < columns; n++, out++) {
        *out = op == 'A' ? *p + *q : op == 'M' ? *p * *q : op == 'R' ? (*p < 0 ? 0 : *p) : 0;
        for (int64_t k = 0; op == 'x' && k < depth; k++) *out += p[m * depth + k] * q[k * columns + n];
      }
  }
}

static void drop(DLManagedTensorVersioned *tensor) { free(tensor); }

/* A tensor of our own with memory for a result whose shape was not known before; NULL: no memory. */
static DLManagedTensorVersioned *managed(const array *y) {
  size_t bytes = (size_t)items(y, y->rank) * sizeof(float);
  DLManagedTensorVersioned *made = calloc(1, sizeof *made + sizeof y->dims + bytes);
  if (!made) return NULL;
  int64_t *shape = memcpy(made + 1, y->dims, sizeof y->dims);
  made->version.major = 1, made->deleter = drop;
  made->dl_tensor = (DLTensor){shape + RANK, {1, 0}, y->rank, {2, 32, 1}, shape, NULL, 0};
  return made;
}

static int32_t run(void *handle, const DLTensor *inputs, size_t input_count, orthrus_output *outputs,
                   size_t output_count, orthrus_error *error) {
  kernel k = *(const kernel *)handle; /* a copy: other threads are here too */
  (void)input_count, (void)output_count;
  for (int i = 0; i < 2; i++) {
    if (k.input[i] < 0) continue;
    const DLTensor *given = &inputs[k.input[i]];
    k.operand[i].data = given->data, k.operand[i].rank = given->ndim;
    memcpy(k.operand[i].dims, given->shape, (size_t)given->ndim * sizeof(int64_t));
  }
  array y = {0};
  const DLTensor *room = &outputs->tensor;
  if (!shaped(&y, &k.operand[0], &k.operand[1], k.op == 'x' ? 2 : 0)) {
    error->node = 0;
    snprintf(error->text, sizeof error->text, "the shapes of its inputs do not fit together");
    return ORTHRUS_INVALID_ARGUMENT;
  }
  if (!room->data || room->ndim != y.rank || memcmp(room->shape, y.dims, (size_t)y.rank * sizeof(int64_t))) {
    if (!(outputs->made = managed(&y))) return ORTHRUS_FAIL;
    room = &outputs->made->dl_tensor;
  }
  compute(k.op, room->data, &y, &k.operand[0], &k.operand[1]);
  return ORTHRUS_OK;
}

static const orthrus_provider provider = {
  .size = sizeof provider, .name = "ExampleExecutionProvider", .vendor = "Example", .version = "1.0",
  .claim = claim, .compile = compile, .run = run, .release = free,
};
static const orthrus_provider *const providers[] = {&provider};
static const orthrus_library library = {ORTHRUS_PROVIDER_ABI, providers, 1};

const orthrus_library *orthrus_provider_library(uint32_t abi) {
  return abi == ORTHRUS_PROVIDER_ABI ? &library : NULL;
}
