/* Inputs and outputs as few programs hand them over: what each call answers, to be compared between libraries.
 *
 *   odd_values LIBRARY FOLDER WHAT...
 *
 * WHAT is "creations", or a model of the folder: two... (a + b and a - b of matrices), rank... (-x of any shape),
 * strings (of x, each twice), kind... (y of x, which is a tensor, a sequence ...), unread... (y of x alone),
 * empty (no maps of no rows). */
#define _GNU_SOURCE
#include "checked.h"

#include <glob.h>

enum { MOST_DIMS = 128, MATRICES = 7 };
#define FLOATS ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
#define STRINGS ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING

const OrtApi *api;
OrtAllocator *allocator;
OrtMemoryInfo *memory;
static OrtEnv *env;
static const int64_t matrices[MATRICES][4] = {{2, 3, 1, 1}, {0, 3, 1, 1}, {2, 0, 1, 1}, {0, 0, 1, 1},
                                              {3, 2, 1, 1}, {1, 1, 1, 1}, {1, 3, 1, 1}};
static const char *const both_inputs[] = {"a", "b", "a"}, *const both_outputs[] = {"s", "d"};

static void tell(const char *what, OrtStatus *status) {
    printf("%s: %d\n", what, status == NULL ? 0 : (int)api->GetErrorCode(status));
    if (status != NULL) fprintf(stderr, "%s\n", api->GetErrorMessage(status));
    api->ReleaseStatus(status);
}

static void show_text(const OrtValue *value, size_t index) {
    size_t length;
    unsigned char text[256];
    CHECK(api->GetStringTensorElementLength(value, index, &length));
    CHECK(api->GetStringTensorElement(value, length, index, text));
    printf(" '");
    for (size_t i = 0; i < length; i++) printf("%02x", text[i]);
    printf("'");
}

static void show(OrtValue *value) {
    OrtTensorTypeAndShapeInfo *info;
    ONNXTensorElementDataType type;
    size_t rank, count;
    int64_t dims[MOST_DIMS];
    void *data;
    if (value == NULL) {
        puts("  null");
        return;
    }
    CHECK(api->GetTensorTypeAndShape(value, &info));
    CHECK(api->GetTensorElementType(info, &type));
    CHECK(api->GetDimensionsCount(info, &rank));
    CHECK(api->GetDimensions(info, dims, rank));
    CHECK(api->GetTensorShapeElementCount(info, &count));
    api->ReleaseTensorTypeAndShapeInfo(info);
    printf("  type %d of", (int)type);
    for (size_t i = 0; i < rank; i++) printf(" %lld", (long long)dims[i]);
    printf(":");
    if (type != STRINGS) CHECK(api->GetTensorMutableData(value, &data));
    for (size_t i = 0; i < count; i++) {
        if (type == STRINGS) show_text(value, i);
        if (type == FLOATS) printf(" %g", ((float *)data)[i]);
    }
    puts("");
}

static void show_and_release(OrtValue *value) {
    show(value);
    api->ReleaseValue(value);
}

/* Ones, twos ... of memory of its own; other types than floats hold what they begin with. */
static OrtValue *tensor(const int64_t *dims, size_t rank, ONNXTensorElementDataType type) {
    OrtValue *value = NULL;
    float *data;
    size_t count = 1;
    for (size_t i = 0; i < rank; i++) count *= (size_t)dims[i];
    CHECK(api->CreateTensorAsOrtValue(allocator, dims, rank, type, &value));
    if (type != FLOATS) return value;
    CHECK(api->GetTensorMutableData(value, (void **)&data));
    for (size_t i = 0; i < count; i++) data[i] = (float)i + 1;
    return value;
}

static OrtValue *over(void *data, const int64_t *dims) {
    OrtValue *value;
    CHECK(api->CreateTensorWithDataAsOrtValue(memory, data, 6 * sizeof(float), dims, 2, FLOATS, &value));
    return value;
}

static void run(const char *what, OrtSession *session, size_t inputs, OrtValue *const *feeds, size_t outputs,
                const char *const *names, OrtValue **results) {
    OrtValue *given[3];
    memcpy(given, results, outputs * sizeof *given);
    tell(what, api->Run(session, NULL, both_inputs, (const OrtValue *const *)feeds, inputs, names, outputs, results));
    for (size_t i = 0; i < outputs; i++) {
        printf("  %s\n", given[i] == NULL ? "of its own" : given[i] == results[i] ? "as given" : "replaced");
        show(results[i]);
        if (given[i] == NULL) api->ReleaseValue(results[i]);
    }
}

static void one(const char *what, OrtSession *session, OrtValue *x, OrtValue *given) {
    static const char *const in[] = {"x"}, *const out[] = {"y"};
    OrtValue *y = given;
    tell(what, api->Run(session, NULL, in, (const OrtValue *const[]){x}, 1, out, 1, &y));
    if (given == NULL) api->ReleaseValue(y);
}

static void run_both(const char *what, OrtSession *session, OrtValue *a, OrtValue *b, OrtValue *s, OrtValue *d) {
    run(what, session, 2, (OrtValue *[]){a, b}, 2, both_outputs, (OrtValue *[]){s, d});
}

static void shapes(OrtSession *session) {
    char what[64];
    for (int i = 0; i < MATRICES * MATRICES; i++) {
        OrtValue *a = tensor(matrices[i / MATRICES], 2, FLOATS), *b = tensor(matrices[i % MATRICES], 2, FLOATS);
        snprintf(what, sizeof what, "shape %d and %d", i / MATRICES, i % MATRICES);
        run_both(what, session, a, b, NULL, NULL);
        api->ReleaseValue(a);
        api->ReleaseValue(b);
    }
    for (size_t rank = 0; rank < 5; rank++) {
        OrtValue *a = tensor(matrices[0], rank, FLOATS);
        snprintf(what, sizeof what, "rank %zu", rank);
        run_both(what, session, a, a, NULL, NULL);
        api->ReleaseValue(a);
    }
}

static void given_outputs(OrtSession *session, OrtValue *a, OrtValue *b) {
    char what[64];
    for (int type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; type <= ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64; type++) {
        OrtValue *other = tensor(matrices[0], 2, (ONNXTensorElementDataType)type);
        snprintf(what, sizeof what, "input of type %d", type);
        run_both(what, session, a, other, NULL, NULL);
        snprintf(what, sizeof what, "output of type %d", type);
        run_both(what, session, a, b, other, NULL);
        snprintf(what, sizeof what, "both outputs of type %d", type);
        run_both(what, session, a, b, other, other);
        api->ReleaseValue(other);
    }
    for (int i = 0; i < MATRICES * 4; i++) {
        OrtValue *given = tensor(matrices[i / 4], (size_t)(i % 4), FLOATS);
        snprintf(what, sizeof what, "output %d of rank %d", i / 4, i % 4);
        run_both(what, session, a, b, given, NULL);
        run_both(what, session, a, b, NULL, given);
        api->ReleaseValue(given);
    }
}

static void names(OrtSession *session, OrtValue *a, OrtValue *b) {
    static const char *const twice[] = {"s", "s"}, *const thrice[] = {"d", "s", "d"}, *const wrong[] = {"S"};
    OrtValue *feeds[] = {a, b, a};
    run("an output twice", session, 2, feeds, 2, twice, (OrtValue *[]){NULL, NULL});
    run("an output thrice", session, 2, feeds, 3, thrice, (OrtValue *[]){NULL, NULL, NULL});
    run("an input twice", session, 3, feeds, 2, both_outputs, (OrtValue *[]){NULL, NULL});
    run("no output", session, 2, feeds, 0, both_outputs, (OrtValue *[]){NULL, NULL});
    run("another output", session, 2, feeds, 1, wrong, (OrtValue *[]){NULL});
    run("another input", session, 2, (OrtValue *[]){b, a}, 2, both_outputs, (OrtValue *[]){NULL, NULL});
}

static void places(OrtSession *session, OrtValue *a) {
    static float room[64];
    for (size_t shift = 0; shift < 4; shift++) {
        char *at = (char *)room + shift;
        const float numbers[] = {6, 5, 4, 3, 2, 1};
        memcpy(at, numbers, sizeof numbers);
        OrtValue *input = over(at, matrices[0]), *output = over(at + 128, matrices[0]);
        float found[6];
        tell("unaligned", api->Run(session, NULL, both_inputs, (const OrtValue *const[]){a, input}, 2, both_outputs, 1,
                                   &output));
        memcpy(found, at + 128, sizeof found);
        for (int i = 0; i < 6; i++) printf(" %g", found[i]);
        puts("");
        api->ReleaseValue(input);
        api->ReleaseValue(output);
    }
    for (int i = 0; i < 64; i++) room[i] = (float)i;
    OrtValue *first = over(room, matrices[0]), *second = over(room + 3, matrices[0]);
    run_both("inputs overlap", session, first, second, NULL, NULL);
    api->ReleaseValue(first);
    api->ReleaseValue(second);
}

static void two(OrtSession *session) {
    OrtValue *a = tensor(matrices[0], 2, FLOATS), *b = tensor(matrices[0], 2, FLOATS);
    shapes(session);
    given_outputs(session, a, b);
    names(session, a, b);
    places(session, a);
    run("an input is an output", session, 2, (OrtValue *[]){a, b}, 1, both_outputs, &a);
    api->ReleaseValue(a);
    api->ReleaseValue(b);
}

static void strings(OrtSession *session) {
    static const struct {
        const char *bytes;
        size_t length;
    } texts[] = {{"a\0b", 3}, {"\xff\xfe", 2}, {"", 0}, {"\0", 1}, {"\xc3(\xed\xa0\x80 Z\xc3\xbcrich", 13}};
    static const char *const in[] = {"x"}, *const out[] = {"y"};
    for (int64_t count = 0; count <= 5; count++) {
        OrtValue *x = tensor(&count, 1, STRINGS), *y = NULL, *given = tensor(&count, 1, STRINGS);
        char *bytes;
        for (size_t i = 0; i < (size_t)count; i++) {
            CHECK(api->GetResizedStringTensorElementBuffer(x, i, texts[i].length, &bytes));
            memcpy(bytes, texts[i].bytes, texts[i].length);
        }
        tell("strings", api->Run(session, NULL, in, (const OrtValue *const[]){x}, 1, out, 1, &y));
        show_and_release(y);
        tell("given", api->Run(session, NULL, in, (const OrtValue *const[]){x}, 1, out, 1, &given));
        show_and_release(given);
        api->ReleaseValue(x);
    }
}

static void ranks(OrtSession *session) {
    static const char *const in[] = {"x"}, *const out[] = {"y"};
    int64_t dims[MOST_DIMS] = {2};
    for (int i = 1; i < MOST_DIMS; i++) dims[i] = 1;
    for (size_t rank = 0; rank <= 64; rank++) {
        OrtValue *x = tensor(dims, rank, FLOATS), *y = NULL;
        tell("rank", api->Run(session, NULL, in, (const OrtValue *const[]){x}, 1, out, 1, &y));
        show_and_release(y);
        api->ReleaseValue(x);
    }
}

static OrtValue *container(ONNXType kind, OrtValue *first, OrtValue *second) {
    OrtValue *made;
    CHECK(api->CreateValue((const OrtValue *const[]){first, second}, 2, kind, &made));
    api->ReleaseValue(first);
    api->ReleaseValue(second);
    return made;
}

/* Values of every kind for an input of one; and an output of another kind than the one given. */
static void kinds(OrtSession *session) {
    static float numbers[] = {1, 2};
    static int64_t places[] = {0, 3}, pair = 2;
    const int64_t square[] = {2, 2};
    OrtValue *texts = tensor(&pair, 1, STRINGS), *sparse, *null = NULL;
    CHECK(api->FillStringTensor(texts, (const char *const[]){"a", "b"}, 2));
    CHECK(api->CreateSparseTensorWithValuesAsOrtValue(memory, numbers, square, 2, &pair, 1, FLOATS, &sparse));
    CHECK(api->UseCooIndices(sparse, places, 2));
    OrtValue *keys = tensor(&pair, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
    CHECK(api->GetTensorMutableData(keys, (void **)&null));
    memcpy(null, places, sizeof places);
    OrtValue *values[] = {
        tensor(square, 2, FLOATS),
        container(ONNX_TYPE_SEQUENCE, tensor(&pair, 1, FLOATS), tensor(&pair, 1, FLOATS)),
        container(ONNX_TYPE_MAP, texts, tensor(&pair, 1, FLOATS)),
        container(ONNX_TYPE_MAP, keys, tensor(&pair, 1, FLOATS)),
        sparse,
    };
    enum { VALUES = sizeof values / sizeof *values };
    char what[64];
    for (int i = 0; i < VALUES; i++) {
        snprintf(what, sizeof what, "value %d", i);
        one(what, session, values[i], NULL);
        snprintf(what, sizeof what, "a tensor into value %d", i);
        if (i > 0) one(what, session, values[0], values[i]);
    }
    for (int i = 0; i < VALUES; i++) api->ReleaseValue(values[i]);
}

static void unread(OrtSession *session) {
    static const int64_t sizes[] = {2, 3};
    static const char *const in[] = {"x", "u"}, *const out[] = {"y"};
    OrtValue *values[] = {tensor(sizes, 1, FLOATS), tensor(sizes + 1, 1, FLOATS), tensor(sizes, 2, FLOATS)};
    for (size_t i = 0; i < 4; i++) {
        OrtValue *y = NULL;
        const OrtValue *const fed[] = {values[0], values[i > 0 ? i - 1 : 0]};
        tell("unread", api->Run(session, NULL, in, fed, i == 0 ? 1 : 2, out, 1, &y));
        show_and_release(y);
    }
    for (int i = 0; i < 3; i++) api->ReleaseValue(values[i]);
}

/* Takes the type. */
static void show_type(OrtTypeInfo *type) {
    ONNXType kind;
    ONNXTensorElementDataType element;
    const OrtTensorTypeAndShapeInfo *tensor;
    const OrtSequenceTypeInfo *sequence;
    const OrtMapTypeInfo *map;
    OrtTypeInfo *inner = NULL;
    size_t rank;
    CHECK(api->GetOnnxTypeFromTypeInfo(type, &kind));
    CHECK(api->CastTypeInfoToTensorInfo(type, &tensor));
    CHECK(api->CastTypeInfoToSequenceTypeInfo(type, &sequence));
    CHECK(api->CastTypeInfoToMapTypeInfo(type, &map));
    printf("  kind %d", (int)kind);
    if (tensor != NULL) {
        CHECK(api->GetTensorElementType(tensor, &element));
        CHECK(api->GetDimensionsCount(tensor, &rank));
        printf(" of %d, rank %zu, shape %d", (int)element, rank, (int)api->TensorTypeAndShape_HasShape(tensor));
    }
    if (sequence != NULL) CHECK(api->GetSequenceElementType(sequence, &inner));
    if (map != NULL) {
        CHECK(api->GetMapKeyType(map, &element));
        CHECK(api->GetMapValueType(map, &inner));
        printf(" by %d", (int)element);
    }
    puts("");
    if (inner != NULL) show_type(inner);
    api->ReleaseTypeInfo(type);
}

static void no_rows(OrtSession *session) {
    const int64_t dims[] = {0, 2};
    static const char *const in[] = {"x"}, *const out[] = {"y"};
    OrtValue *x = tensor(dims, 2, FLOATS), *y = NULL;
    OrtTypeInfo *type = NULL;
    size_t count;
    tell("no rows", api->Run(session, NULL, in, (const OrtValue *const[]){x}, 1, out, 1, &y));
    CHECK(api->GetValueCount(y, &count));
    printf("  %zu\n", count);
    tell("type", api->GetTypeInfo(y, &type));
    if (type != NULL) show_type(type);
    api->ReleaseValue(x);
    api->ReleaseValue(y);
}

/* Settings and questions out of their range. */
static void ranges(OrtSession *session, const char *path) {
    static const char *const in[] = {"a", "b"}, *const out[] = {"s"};
    OrtValue *a = tensor(matrices[0], 2, FLOATS);
    for (int severity = -3; severity < 7; severity++) {
        OrtSessionOptions *options;
        OrtRunOptions *run_options;
        OrtSession *made = NULL;
        OrtValue *s = NULL;
        CHECK(api->CreateSessionOptions(&options));
        CHECK(api->SetSessionLogSeverityLevel(options, severity == 0 || severity == 1 ? 2 : severity));
        CHECK(api->CreateRunOptions(&run_options));
        CHECK(api->RunOptionsSetRunLogSeverityLevel(run_options, severity == 0 || severity == 1 ? 2 : severity));
        printf("severity %d\n", severity);
        tell("session", api->CreateSession(env, path, options, &made));
        tell("run", api->Run(session, run_options, in, (const OrtValue *const[]){a, a}, 2, out, 1, &s));
        api->ReleaseValue(s);
        api->ReleaseSession(made);
        api->ReleaseRunOptions(run_options);
        api->ReleaseSessionOptions(options);
    }
    for (size_t index = 1; index < 4; index++) {
        OrtTypeInfo *type = NULL;
        char *name = NULL;
        printf("index %zu\n", index);
        tell("input", api->SessionGetInputTypeInfo(session, index, &type));
        api->ReleaseTypeInfo(type);
        type = NULL;
        tell("output", api->SessionGetOutputTypeInfo(session, index, &type));
        api->ReleaseTypeInfo(type);
        type = NULL;
        tell("overridable", api->SessionGetOverridableInitializerTypeInfo(session, index, &type));
        tell("name", api->SessionGetInputName(session, index, allocator, &name));
        CHECK(api->AllocatorFree(allocator, name));
    }
    api->ReleaseValue(a);
}

/* A run that asks for a profile of itself writes one, and the next, which does not, none. */
static void profiled(OrtSession *session, const char *folder) {
    static const char *const in[] = {"a", "b"}, *const out[] = {"s"};
    char prefix[4096], pattern[4200];
    glob_t found;
    OrtValue *a = tensor(matrices[0], 2, FLOATS);
    OrtRunOptions *options;
    CHECK(api->CreateRunOptions(&options));
    snprintf(prefix, sizeof prefix, "%s/profile%d", folder, (int)getpid());
    snprintf(pattern, sizeof pattern, "%s*", prefix);
    for (int i = 0; i < 3; i++) {
        OrtValue *s = NULL;
        if (i == 0) CHECK(api->RunOptionsEnableProfiling(options, prefix));
        if (i == 1) CHECK(api->RunOptionsDisableProfiling(options));
        tell("profiled", api->Run(session, i < 2 ? options : NULL, in, (const OrtValue *const[]){a, a}, 2, out, 1, &s));
        show_and_release(s);
        if (glob(pattern, 0, NULL, &found) != 0) {
            puts("  no profile");
            continue;
        }
        FILE *file = fopen(found.gl_pathv[0], "r");
        EXPECT(file != NULL);
        printf("  %zu profiles, the first begins with %c\n", found.gl_pathc, fgetc(file));
        fclose(file);
        globfree(&found);
    }
    api->ReleaseRunOptions(options);
    api->ReleaseValue(a);
}

static void creations(void) {
    static const int64_t wrong[][2] = {{INT64_MAX, INT64_MAX}, {-1, 2}, {2, -1}, {(int64_t)1 << 40, 1 << 10},
                                       {(int64_t)1 << 62, 4}};
    static const int64_t empty[] = {0, INT64_MAX};
    static const size_t sizes[] = {0, 23, 24, 25, 1000};
    static float data[6];
    OrtValue *value = NULL;
    OrtSession *session = NULL;
    for (int i = 0; i < 5; i++) {
        tell("floats", api->CreateTensorAsOrtValue(allocator, wrong[i], 2, FLOATS, &value));
        tell("strings", api->CreateTensorAsOrtValue(allocator, wrong[i], 2, STRINGS, &value));
        tell("over", api->CreateTensorWithDataAsOrtValue(memory, data, 24, wrong[i], 2, FLOATS, &value));
    }
    for (int i = 0; i < 5; i++) {
        value = NULL;
        tell("size", api->CreateTensorWithDataAsOrtValue(memory, data, sizes[i], matrices[0], 2, FLOATS, &value));
        show_and_release(value);
    }
    value = NULL;
    tell("empty", api->CreateTensorAsOrtValue(allocator, empty, 2, FLOATS, &value));
    show_and_release(value);
    tell("no bytes", api->CreateSessionFromArray(env, data, 0, NULL, &session));
    tell("no model", api->CreateSessionFromArray(env, "garbage!garbage!", 16, NULL, &session));
    tell("no name", api->CreateSession(env, "", NULL, &session));
    tell("nowhere", api->CreateSession(env, "/nowhere", NULL, &session));
    tell("a folder", api->CreateSession(env, "/tmp", NULL, &session));
    tell("no file", api->CreateSession(env, "/dev/zero", NULL, &session));
}

int main(int count, char **words) {
    if (count < 4) return 2;
    use_library(words[1]);
    CHECK(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "odd", &env));
    for (int i = 3; i < count; i++) {
        char path[4096];
        OrtSession *session = NULL;
        printf("# %s\n", words[i]);
        snprintf(path, sizeof path, "%s/%s.onnx", words[2], words[i]);
        if (strcmp(words[i], "creations") == 0)
            creations();
        else
            CHECK(api->CreateSession(env, path, NULL, &session));
        if (strncmp(words[i], "two", 3) == 0) {
            two(session);
            ranges(session, path);
            profiled(session, words[2]);
        }
        if (strncmp(words[i], "kind", 4) == 0) kinds(session);
        if (strncmp(words[i], "unread", 6) == 0) unread(session);
        if (strcmp(words[i], "empty") == 0) no_rows(session);
        if (strncmp(words[i], "rank", 4) == 0) ranks(session);
        if (strcmp(words[i], "strings") == 0) strings(session);
        api->ReleaseSession(session);
    }
    api->ReleaseMemoryInfo(memory);
    api->ReleaseEnv(env);
    return 0;
}
