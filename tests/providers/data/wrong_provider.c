/* A provider that negates float tensors, and is wrong in the way that `misbehave` names. */
#include <orthrus_provider.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char fault[64];
static atomic_long alive[3]; /* providers, kernels, tensors */
static char told[4096];      /* what `claim` was shown */

void misbehave(const char *how) { snprintf(fault, sizeof fault, "%s", how); }
long living(int kind) { return atomic_load(&alive[kind]); }
const char *shown(void) { return told; }

static int is(const char *how) { return !strcmp(fault, how); }

static int32_t fail(orthrus_error *error, int32_t code, int32_t node, const char *text) {
  error->node = node;
  snprintf(error->text, sizeof error->text, "%s", text);
  return code;
}

static int32_t probe(orthrus_error *error) {
  if (is("probe in silence")) return ORTHRUS_FAIL;
  return is("probe") ? fail(error, ORTHRUS_FAIL, -1, "no such chip") : ORTHRUS_OK;
}

static int32_t create(const orthrus_setting *settings, size_t count, void **self, orthrus_error *error) {
  for (size_t i = 0; i < count; i++)
    if (!strcmp(settings[i].name, "speed") && strcmp(settings[i].value, "fast") && strcmp(settings[i].value, "slow"))
      return fail(error, ORTHRUS_INVALID_ARGUMENT, -1, "speed is fast or slow");
  if (is("create")) return fail(error, ORTHRUS_DEVICE_RESET, -1, "the chip fell off");
  *self = malloc(1);
  alive[0]++;
  return ORTHRUS_OK;
}

static void destroy(void *self) {
  free(self);
  alive[0]--;
}

static void say(const orthrus_graph *graph) {
  int at = 0;
  told[0] = 0;
  for (size_t i = 0; i < graph->node_count && at < 3000; i++) {
    const orthrus_node *node = &graph->nodes[i];
    at += sprintf(told + at, "%s:%s-%d free=%d in=%zu out=%zu", node->domain, node->op_type, node->version, node->free,
                  node->input_count, node->output_count);
    for (size_t j = 0; j < node->attribute_count; j++) {
      const orthrus_attribute *a = &node->attributes[j];
      at += sprintf(told + at, " %s(%d,%zu)", a->name, a->type, a->count);
      for (size_t k = 0; a->floats && k < a->count; k++) at += sprintf(told + at, " %g", (double)a->floats[k]);
      for (size_t k = 0; a->ints && k < a->count; k++) at += sprintf(told + at, " %lld", (long long)a->ints[k]);
      for (size_t k = 0; a->strings && k < a->count; k++) at += sprintf(told + at, " %s/%zu", a->strings[k], a->string_bytes[k]);
      if (a->tensor) at += sprintf(told + at, " %zu bytes", a->tensor->bytes);
    }
    at += sprintf(told + at, "\n");
  }
  for (size_t i = 0; i < graph->value_count && at < 3800; i++) {
    const orthrus_value *v = &graph->values[i];
    at += sprintf(told + at, "%s %d rank=%d", v->name, v->element_type, v->rank);
    for (int j = 0; j < v->rank; j++) at += sprintf(told + at, " %lld/%s", (long long)v->dims[j], v->dim_names[j] ? v->dim_names[j] : "");
    at += sprintf(told + at, "%s %zu%s\n", v->constant ? " constant" : "", v->bytes, v->data ? " data" : "");
  }
}

static int32_t claim(void *self, const orthrus_graph *graph, const orthrus_claims *claims, orthrus_error *error) {
  (void)self;
  say(graph);
  if (is("claim")) return fail(error, ORTHRUS_FAIL, 0, "the chip is confused");
  if (is("claim with no such code")) return 4711;
  if (is("claim blames no such node")) return fail(error, ORTHRUS_FAIL, 99, "that one");
  if (is("take beyond")) claims->take(claims, graph->node_count, 0);
  if (is("take far beyond")) claims->take(claims, (size_t)-1, 0);
  if (is("refuse beyond")) claims->refuse(claims, graph->node_count, "no");
  for (size_t i = 0; i < graph->node_count; i++) {
    const orthrus_node *node = &graph->nodes[i];
    int mine = !strcmp(node->op_type, "Neg") || !strcmp(node->op_type, "Reshape") || !strcmp(node->op_type, "Split");
    if (is("silent")) continue;
    if (is("group")) claims->take(claims, i, -2);
    if (is("refuse in silence")) claims->refuse(claims, i, NULL);
    if (is("refuse with nothing")) claims->refuse(claims, i, " ");
    if (is("refuse in latin")) claims->refuse(claims, i, "no\xe9");
    else if (mine && (node->free || is("take what is not free"))) {
      claims->take(claims, i, is("one group") ? 7 : ORTHRUS_JOIN);
      if (is("take twice")) claims->take(claims, i, 3);
      if (is("take and refuse")) claims->refuse(claims, i, "no");
    } else if (node->free) claims->refuse(claims, i, "it is no Neg");
    if (is("refuse and take")) claims->take(claims, i, 0);
    if (is("take what is not free")) claims->take(claims, i, 0);
  }
  return ORTHRUS_OK;
}

static int32_t compile(void *self, const orthrus_graph *part, const orthrus_session *session, orthrus_kernel *kernel,
                       orthrus_error *error) {
  (void)self;
  if (is("compile")) return fail(error, ORTHRUS_ENGINE_ERROR, (int32_t)part->node_count - 1, "the compiler is full");
  if (is("compile gives back")) return fail(error, ORTHRUS_NOT_IMPLEMENTED, 0, "not that one");
  if (is("compile gives back in silence")) return ORTHRUS_NOT_IMPLEMENTED;
  if (is("no handle")) return ORTHRUS_OK;
  if (is("long name")) memset(kernel->name, 'x', sizeof kernel->name);
  else if (is("odd name")) strcpy(kernel->name, "\xff");
  else snprintf(kernel->name, sizeof kernel->name, "negate on %d threads", session->threads);
  kernel->handle = malloc(1);
  alive[1]++;
  return ORTHRUS_OK;
}

static void release(void *handle) {
  free(handle);
  alive[1]--;
}

static void drop(DLManagedTensorVersioned *tensor) {
  free(tensor);
  alive[2]--;
}

static DLManagedTensorVersioned *made(const DLTensor *x) {
  int64_t count = 1;
  for (int i = 0; i < x->ndim; i++) count *= x->shape[i];
  DLManagedTensorVersioned *y = calloc(1, sizeof *y + 64 * sizeof(int64_t) + (size_t)count * sizeof(float));
  int64_t *shape = (int64_t *)(y + 1);
  memcpy(shape, x->shape, (size_t)x->ndim * sizeof(int64_t));
  y->version.major = 1, y->deleter = drop, y->dl_tensor = *x;
  y->dl_tensor.data = shape + 64, y->dl_tensor.shape = shape, y->dl_tensor.strides = NULL;
  alive[2]++;
  return y;
}

static void spoil(DLManagedTensorVersioned *y, const DLTensor *x) {
  if (is("type")) y->dl_tensor.dtype.code = 0;
  if (is("no such type")) y->dl_tensor.dtype.code = 99;
  if (is("lanes")) y->dl_tensor.dtype.lanes = 4;
  if (is("device")) y->dl_tensor.device.device_type = 2;
  if (is("rank")) y->dl_tensor.ndim = -1;
  if (is("large rank")) y->dl_tensor.ndim = 1 << 30;
  if (is("no shape")) y->dl_tensor.shape = NULL;
  if (is("negative size")) y->dl_tensor.shape[0] = -3;
  if (is("large size")) y->dl_tensor.shape[0] = INT64_MAX;
  if (is("no data")) y->dl_tensor.data = NULL;
  if (is("later version")) y->version.major = 2;
  if (is("no version")) y->version.major = 0;
  if (is("alias")) y->dl_tensor.data = x->data;
  if (is("no deleter")) y->deleter = NULL, alive[2]--;
}

static int32_t run(void *handle, const DLTensor *inputs, size_t input_count, orthrus_output *outputs,
                   size_t output_count, orthrus_error *error) {
  (void)handle;
  const DLTensor *x = inputs;
  for (size_t i = 0; i < output_count; i++) {
    DLTensor *y = &outputs[i].tensor;
    if (is("nothing made")) continue;
    if (!y->data || is("own") || is("fails with a tensor")) {
      outputs[i].made = made(x);
      y = &outputs[i].made->dl_tensor;
    }
    int64_t count = 1;
    for (int j = 0; j < y->ndim; j++) count *= y->shape[j];
    for (int64_t j = 0; j < count; j++) ((float *)y->data)[j] = -((const float *)x->data)[j % (count ? count : 1)];
    if (outputs[i].made) spoil(outputs[i].made, x);
  }
  if (is("one for two")) {
    drop(outputs[1].made);
    outputs[1].made = outputs[0].made;
  }
  if (is("run") || is("fails with a tensor")) return fail(error, ORTHRUS_RUNTIME_EXCEPTION, 0, "the chip is hot");
  if (is("run with no such code")) return fail(error, -5, -1, "odd");
  if (is("run in silence")) return ORTHRUS_FAIL;
  if (is("long text")) {
    memset(error->text, 'y', sizeof error->text);
    return ORTHRUS_FAIL;
  }
  if (is("odd text")) return fail(error, ORTHRUS_FAIL, 1 << 30, "\xff\xfe");
  return input_count ? ORTHRUS_OK : ORTHRUS_FAIL;
}

static orthrus_provider provider;
static orthrus_device device = {2, 0x1234, 0x56, "Wrong Chips"};
static orthrus_option options[2];
static const orthrus_provider *providers[2];
static orthrus_library library;

const orthrus_library *orthrus_provider_library(uint32_t abi) {
  if (is("null library")) return NULL;
  options[0] = (orthrus_option){is("option without a name") ? NULL : "speed", "fast", "fast or slow"};
  options[1] = (orthrus_option){is("options of one name") ? "speed" : "note", NULL, "anything"};
  device.kind = is("device kind") ? 77 : 2;
  provider = (orthrus_provider){
    .size = is("size") ? 16 : sizeof provider, .name = "WrongExecutionProvider", .vendor = "Wrong", .version = "0.1",
    .devices = is("no devices") ? NULL : &device, .device_count = 1, .options = is("no options") ? NULL : options,
    .option_count = is("many options") ? (size_t)-1 : 2, .probe = probe, .create = create,
    .destroy = is("no destroy") ? NULL : destroy, .claim = is("no claim") ? NULL : claim,
    .compile = is("no compile") ? NULL : compile, .run = is("no run") ? NULL : run,
    .release = is("no release") ? NULL : release,
  };
  if (is("no name")) provider.name = NULL;
  if (is("odd name of a provider")) provider.name = "My Provider";
  if (is("name in latin")) provider.name = "\xe9" "ExecutionProvider";
  if (is("name of another")) provider.name = "CPUExecutionProvider";
  providers[0] = is("null provider") ? NULL : &provider;
  providers[1] = &provider;
  library = (orthrus_library){is("later abi") ? 2 : abi, is("no table") ? NULL : providers, 1};
  if (is("no providers")) library.provider_count = 0;
  if (is("many providers")) library.provider_count = (size_t)1 << 40;
  return &library;
}
