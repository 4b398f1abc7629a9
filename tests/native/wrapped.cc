/* A program of C++ on the wrapper that onnxruntime ships, onnxruntime_cxx_api.h: every line that it writes is to be
 * the same whichever library it runs on.
 *
 *   wrapped FOLDER
 *
 * FOLDER has the models that test_own_headers.py writes. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "onnxruntime_cxx_api.h"

namespace {

std::string folder;
std::string path(const char *name) { return folder + "/" + name + ".onnx"; }

const Ort::MemoryInfo &memory() {
    static const Ort::MemoryInfo made = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    return made;
}

template <typename T>
Ort::Value tensor(std::vector<T> &data, const std::vector<int64_t> &shape) {
    return Ort::Value::CreateTensor<T>(memory(), data.data(), data.size(), shape.data(), shape.size());
}

void show_shape(const Ort::ConstTensorTypeAndShapeInfo &info) {
    std::vector<const char *> names(info.GetDimensionsCount());
    info.GetSymbolicDimensions(names.data(), names.size());
    std::vector<int64_t> shape = info.GetShape();
    std::printf(" tensor %d", info.GetElementType());
    for (size_t i = 0; i < shape.size(); i++) std::printf(" %lld'%s'", static_cast<long long>(shape[i]), names[i]);
}

void show_type(const Ort::ConstTypeInfo &info) {
    switch (info.GetONNXType()) {
        case ONNX_TYPE_TENSOR: return show_shape(info.GetTensorTypeAndShapeInfo());
        case ONNX_TYPE_SEQUENCE:
            std::printf(" sequence of");
            return show_type(info.GetSequenceTypeInfo().GetSequenceElementType().GetConst());
        case ONNX_TYPE_MAP:
            std::printf(" map from %d to", info.GetMapTypeInfo().GetMapKeyType());
            return show_type(info.GetMapTypeInfo().GetMapValueType().GetConst());
        default: std::printf(" kind %d", info.GetONNXType());
    }
}

void show(const Ort::ConstValue &value);

void show_tensor(const Ort::ConstValue &value) {
    auto info = value.GetTensorTypeAndShapeInfo();
    show_shape(info.GetConst());
    size_t count = info.GetElementCount();
    std::printf(" (%zu):", count);
    for (size_t i = 0; i < count; i++) {
        switch (info.GetElementType()) {
            case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: std::printf(" %.5g", value.GetTensorData<float>()[i]); break;
            case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: std::printf(" %.5g", value.GetTensorData<double>()[i]); break;
            case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
                std::printf(" %lld", static_cast<long long>(value.GetTensorData<int64_t>()[i]));
                break;
            case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: std::printf(" %d", value.GetTensorData<bool>()[i]); break;
            case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
                std::printf(" %.5g", value.GetTensorData<Ort::Float16_t>()[i].ToFloat());
                break;
            case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
                std::printf(" %.5g", value.GetTensorData<Ort::BFloat16_t>()[i].ToFloat());
                break;
            case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING:
                std::printf(" '%s'", value.GetStringTensorElement(i).c_str());
                break;
            default: std::printf(" ?");
        }
    }
    std::puts("");
}

void show(const Ort::ConstValue &value) {
    if (!value.HasValue()) return static_cast<void>(std::puts("  nothing"));
    if (value.IsTensor()) return show_tensor(value);
    Ort::AllocatorWithDefaultOptions allocator;
    std::printf("  %d with %zu:\n", value.GetTypeInfo().GetONNXType(), value.GetCount());
    for (int i = 0; i < static_cast<int>(value.GetCount()); i++) {
        Ort::Value each = value.GetValue(i, allocator);
        show(each.GetConst());
    }
}

void show(const std::vector<Ort::Value> &values) {
    for (const Ort::Value &each : values) show(each.GetConst());
}

/* What a call throws: the code; the text, which may differ, goes beside. */
void refused(const char *what, const std::function<void()> &call) {
    try {
        call();
        std::printf("%s: nothing thrown\n", what);
    } catch (const Ort::Exception &error) {
        std::printf("%s: %d\n", what, error.GetOrtErrorCode());
        std::fprintf(stderr, "%s: %s\n", what, error.what());
    }
}

void describe(const Ort::Session &session) {
    Ort::AllocatorWithDefaultOptions allocator;
    for (size_t i = 0; i < session.GetInputCount(); i++) {
        std::printf("in %s", session.GetInputNameAllocated(i, allocator).get());
        show_type(session.GetInputTypeInfo(i).GetConst());
        std::puts("");
    }
    for (size_t i = 0; i < session.GetOutputCount(); i++) {
        std::printf("out %s", session.GetOutputNameAllocated(i, allocator).get());
        show_type(session.GetOutputTypeInfo(i).GetConst());
        std::puts("");
    }
    for (size_t i = 0; i < session.GetOverridableInitializerCount(); i++) {
        std::printf("initializer %s", session.GetOverridableInitializerNameAllocated(i, allocator).get());
        show_type(session.GetOverridableInitializerTypeInfo(i).GetConst());
        std::puts("");
    }
}

void metadata(const Ort::Session &session) {
    Ort::AllocatorWithDefaultOptions allocator;
    Ort::ModelMetadata data = session.GetModelMetadata();
    std::printf("%s|%s|%s|%s|%s|%lld\n", data.GetProducerNameAllocated(allocator).get(),
                data.GetGraphNameAllocated(allocator).get(), data.GetDomainAllocated(allocator).get(),
                data.GetDescriptionAllocated(allocator).get(), data.GetGraphDescriptionAllocated(allocator).get(),
                static_cast<long long>(data.GetVersion()));
    std::vector<std::string> keys;
    for (const auto &key : data.GetCustomMetadataMapKeysAllocated(allocator)) keys.emplace_back(key.get());
    std::sort(keys.begin(), keys.end());
    for (const std::string &key : keys)
        std::printf("%s = %s\n", key.c_str(), data.LookupCustomMetadataMapAllocated(key.c_str(), allocator).get());
    std::printf("absent: %d\n", data.LookupCustomMetadataMapAllocated("absent", allocator) == nullptr);
}

std::vector<float> numbers(size_t count, float first) {
    std::vector<float> made(count);
    std::iota(made.begin(), made.end(), first);
    return made;
}

const char *const both_in[] = {"a", "b"}, *const both_out[] = {"s", "d"};

void runs(Ort::Env &env, const char *name) {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(2).SetInterOpNumThreads(1).SetGraphOptimizationLevel(ORT_ENABLE_ALL);
    options.SetExecutionMode(ORT_SEQUENTIAL).DisableMemPattern().DisableCpuMemArena().SetLogId("wrapped");
    options.AddConfigEntry("session.intra_op.allow_spinning", "0");
    std::printf("%d %s\n", options.HasConfigEntry("session.intra_op.allow_spinning"),
                options.GetConfigEntryOrDefault("nothing", "default").c_str());
    Ort::SessionOptions copied = options.Clone();
    Ort::Session session(env, path(name).c_str(), copied);
    describe(session);
    std::vector<float> a = numbers(6, 1), b = numbers(6, 10);
    std::vector<Ort::Value> feeds;
    feeds.push_back(tensor(a, {2, 3}));
    feeds.push_back(tensor(b, {2, 3}));
    Ort::RunOptions run;
    run.SetRunTag("tag").SetRunLogSeverityLevel(3);
    std::printf("%s %d\n", run.GetRunTag(), run.GetRunLogSeverityLevel());
    show(session.Run(run, both_in, feeds.data(), 2, both_out, 2));
    std::vector<float> room(6);
    Ort::Value given = tensor(room, {2, 3});
    session.Run(run, both_in, feeds.data(), 2, both_out, &given, 1);
    show(given.GetConst());
    std::printf("%g %g\n", room[5], given.At<float>({1, 2}));
    run.SetTerminate();
    refused("terminated", [&] { session.Run(run, both_in, feeds.data(), 2, both_out, 2); });
    run.UnsetTerminate();
    show(session.Run(run, both_in, feeds.data(), 2, both_out + 1, 1));
    const char *const wrong[] = {"a", "nothing"};
    refused("a wrong name", [&] { session.Run(run, wrong, feeds.data(), 2, both_out, 2); });
    refused("an input too few", [&] { session.Run(run, both_in, feeds.data(), 1, both_out, 2); });
    std::vector<int64_t> whole(6);
    Ort::Value other[] = {tensor(whole, {2, 3}), tensor(b, {2, 3})};
    refused("a wrong type", [&] { session.Run(run, both_in, other, 2, both_out, 2); });
    Ort::Value flat[] = {tensor(a, {6}), tensor(b, {6})};
    refused("a wrong rank", [&] { session.Run(run, both_in, flat, 2, both_out, 2); });
}

void bindings(Ort::Env &env, const char *name) {
    Ort::Session session(env, path(name).c_str(), Ort::SessionOptions{});
    Ort::IoBinding binding(session);
    std::vector<float> a = numbers(6, 1), b = numbers(6, 10), room(6);
    Ort::Value given = tensor(room, {3, 2});
    binding.BindInput("a", tensor(a, {3, 2}));
    binding.BindInput("b", tensor(b, {3, 2}));
    binding.BindOutput("s", given);
    binding.BindOutput("d", memory());
    binding.SynchronizeInputs();
    for (int times = 0; times < 3; times++) {
        a[0] += 1;
        session.Run(Ort::RunOptions{}, binding);
        binding.SynchronizeOutputs();
        show(binding.GetOutputValues());
        std::printf("%g\n", room[0]);
    }
    for (const std::string &each : binding.GetOutputNames()) std::printf("bound %s\n", each.c_str());
    binding.ClearBoundOutputs();
    std::printf("%zu left\n", binding.GetOutputNames().size());
    binding.ClearBoundInputs();
    refused("nothing bound", [&] { session.Run(Ort::RunOptions{}, binding); });
    refused("bound to no input", [&] { binding.BindInput("nothing", given); });
}

struct Awaited {
    std::promise<std::pair<std::vector<float>, int>> done;
};

void called(void *data, OrtValue **outputs, size_t count, OrtStatusPtr status) {
    Ort::Status owned(status);
    std::vector<float> found;
    if (owned.IsOK())
        for (size_t i = 0; i < count; i++) found.push_back(Ort::UnownedValue{outputs[i]}.GetTensorData<float>()[0]);
    static_cast<Awaited *>(data)->done.set_value({found, owned.IsOK() ? 0 : owned.GetErrorCode()});
}

void asynchronous(Ort::Env &env, const char *name) {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(2);
    Ort::Session session(env, path(name).c_str(), options);
    std::vector<float> a = numbers(6, 1), b = numbers(6, 10);
    Ort::Value feeds[] = {tensor(a, {2, 3}), tensor(b, {2, 3})}, wrong[] = {tensor(a, {6}), tensor(b, {6})};
    const Ort::RunOptions run;
    for (Ort::Value *inputs : {feeds, wrong}) {
        Awaited awaited;
        Ort::Value outputs[2] = {Ort::Value{nullptr}, Ort::Value{nullptr}};
        session.RunAsync(run, both_in, inputs, 2, both_out, outputs, 2, called, &awaited);
        auto result = awaited.done.get_future().get();
        std::printf("async %d:", result.second);
        for (float each : result.first) std::printf(" %g", each);
        std::puts("");
    }
    std::vector<std::thread> threads;
    std::vector<int> right(8);
    for (size_t i = 0; i < right.size(); i++)
        threads.emplace_back([&, i] {
            for (int times = 0; times < 50; times++) {
                auto results = session.Run(Ort::RunOptions{}, both_in, feeds, 2, both_out, 2);
                right[i] += results[0].GetTensorData<float>()[5] == a[5] + b[5];
            }
        });
    for (std::thread &each : threads) each.join();
    std::printf("%d right\n", std::accumulate(right.begin(), right.end(), 0));
}

struct Counting : OrtAllocator {
    int taken = 0, freed = 0;
    Counting() : OrtAllocator{} {
        version = ORT_API_VERSION;
        OrtAllocator::Alloc = [](OrtAllocator *self, size_t size) {
            static_cast<Counting *>(self)->taken++;
            return std::malloc(size);
        };
        OrtAllocator::Free = [](OrtAllocator *self, void *block) {
            static_cast<Counting *>(self)->freed++;
            std::free(block);
        };
        OrtAllocator::Info = [](const OrtAllocator *) -> const OrtMemoryInfo * { return memory(); };
    }
};

void allocators(Ort::Env &env) {
    Counting own;
    const int64_t shape[] = {4};
    {
        Ort::Value value = Ort::Value::CreateTensor<float>(&own, shape, 1);
        std::printf("taken %d freed %d\n", own.taken, own.freed);
        value.GetTensorMutableData<float>()[3] = 5;
        std::printf("%g %s\n", value.At<float>({3}), value.GetTensorMemoryInfo().GetAllocatorName().c_str());
    }
    std::printf("taken %d freed %d\n", own.taken, own.freed);
    Ort::Session session(env, path("two").c_str(), Ort::SessionOptions{});
    { auto name = session.GetInputNameAllocated(0, &own); }
    std::printf("taken %d freed %d\n", own.taken, own.freed);
    Ort::Allocator of_session(session, memory());
    Ort::MemoryAllocation block = of_session.GetAllocation(100);
    std::printf("%zu %d\n", block.size(), block.get() != nullptr);
    auto info = of_session.GetInfo();
    std::printf("%s %d %d %d\n", info.GetAllocatorName().c_str(), info.GetDeviceId(), info.GetMemoryType(),
                info.GetDeviceType());
    std::printf("%d\n", memory() == Ort::MemoryInfo("Cpu", OrtArenaAllocator, 0, OrtMemTypeDefault));
    env.CreateAndRegisterAllocator(memory(), Ort::ArenaCfg(0, -1, -1, -1));
    Ort::SessionOptions options;
    options.AddConfigEntry("session.use_env_allocators", "1");
    Ort::Session shared(env, path("two").c_str(), options);
    std::vector<float> a = numbers(6, 1);
    Ort::Value feeds[] = {tensor(a, {2, 3}), tensor(a, {2, 3})};
    show(shared.Run(Ort::RunOptions{}, both_in, feeds, 2, both_out, 2));
}

void strings(Ort::Env &env) {
    Ort::Session session(env, path("strings").c_str(), Ort::SessionOptions{});
    Ort::AllocatorWithDefaultOptions allocator;
    describe(session);
    const int64_t shape[] = {3};
    Ort::Value x = Ort::Value::CreateTensor(allocator, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
    const char *const texts[] = {"one", "", "Zürich"};
    x.FillStringTensor(texts, 3);
    x.FillStringTensorElement("three", 2);
    std::memcpy(x.GetResizedStringTensorElementBuffer(1, 3), "two", 3);
    const char *const in[] = {"x"}, *const out[] = {"y"};
    auto found = session.Run(Ort::RunOptions{}, in, &x, 1, out, 1);
    show(found);
    std::printf("%zu %zu\n", found[0].GetStringTensorDataLength(), found[0].GetStringTensorElementLength(2));
    std::vector<char> bytes(found[0].GetStringTensorDataLength());
    std::vector<size_t> begins(3);
    found[0].GetStringTensorContent(bytes.data(), bytes.size(), begins.data(), begins.size());
    std::printf("%.*s %zu %zu\n", static_cast<int>(bytes.size()), bytes.data(), begins[1], begins[2]);
    refused("behind the end", [&] { x.FillStringTensorElement("", 3); });
}

void containers(Ort::Env &env) {
    Ort::AllocatorWithDefaultOptions allocator;
    std::vector<float> a = numbers(2, 1), b = numbers(3, 10);
    std::vector<Ort::Value> elements;
    elements.push_back(tensor(a, {2}));
    elements.push_back(tensor(b, {3}));
    Ort::Value sequence = Ort::Value::CreateSequence(elements);
    show(sequence.GetConst());
    Ort::Session session(env, path("sequence").c_str(), Ort::SessionOptions{});
    describe(session);
    const char *const in[] = {"x"}, *const out[] = {"y", "z"};
    show(session.Run(Ort::RunOptions{}, in, &sequence, 1, out, 2));
    std::vector<int64_t> keys{1, 5};
    Ort::Value map = Ort::Value::CreateMap(tensor(keys, {2}), tensor(a, {2}));
    show(map.GetConst());
    std::printf("%zu\n", map.GetCount());
    Ort::Session zipped(env, path("map").c_str(), Ort::SessionOptions{});
    describe(zipped);
    Ort::Value x = tensor(a, {1, 2});
    show(zipped.Run(Ort::RunOptions{}, in, &x, 1, out, 1));
    refused("an element behind the end", [&] { sequence.GetValue(2, allocator); });
    refused("a tensor of another kind", [&] { sequence.GetTensorMutableData<float>(); });
}

void halves(Ort::Env &env) {
    std::vector<Ort::Float16_t> x{Ort::Float16_t(1.5f), Ort::Float16_t(-2.25f), Ort::Float16_t(0.1f)};
    Ort::Session session(env, path("halves").c_str(), Ort::SessionOptions{});
    describe(session);
    const char *const in[] = {"x"}, *const out[] = {"y", "z"};
    Ort::Value given = tensor(x, {3});
    show(session.Run(Ort::RunOptions{}, in, &given, 1, out, 2));
    std::vector<Ort::BFloat16_t> other{Ort::BFloat16_t(3.f)};
    show(tensor(other, {1}).GetConst());
}

void initializers(Ort::Env &env) {
    std::vector<float> own = numbers(3, 100), x = numbers(3, 1);
    const char *const in[] = {"x", "w"}, *const out[] = {"y"};
    Ort::Session plain(env, path("weights").c_str(), Ort::SessionOptions{});
    describe(plain);
    Ort::Value feeds[] = {tensor(x, {3}), tensor(own, {3})};
    show(plain.Run(Ort::RunOptions{}, in, feeds, 1, out, 1));
    show(plain.Run(Ort::RunOptions{}, in, feeds, 2, out, 1));
    Ort::SessionOptions options;
    options.AddInitializer("w", feeds[1]);
    Ort::Session changed(env, path("weights").c_str(), options);
    show(changed.Run(Ort::RunOptions{}, in, feeds, 1, out, 1));
    metadata(plain);
    refused("no file", [&] { Ort::Session(env, path("nowhere").c_str(), Ort::SessionOptions{}); });
    refused("no model", [&] { Ort::Session(env, "what is this", 12, Ort::SessionOptions{}); });
    Ort::SessionOptions wrong;
    refused("no such provider", [&] { wrong.AppendExecutionProvider("Nothing", {{"a", "b"}}); });
}

void sparse() {
    std::vector<float> values{1, 2};
    std::vector<int64_t> where{1, 3};
    const int64_t shape[] = {2, 2}, count[] = {2};
    Ort::Value made = Ort::Value::CreateSparseTensor<float>(memory(), values.data(), {shape, 2}, {count, 1});
    made.UseCooIndices(where.data(), where.size());
    size_t found = 0;
    const int64_t *at = made.GetSparseTensorIndicesData<int64_t>(ORT_SPARSE_COO_INDICES, found);
    std::printf("sparse %d %zu %lld %g\n", made.GetSparseFormat(), found, static_cast<long long>(at[1]),
                made.GetSparseTensorValues<float>()[1]);
}

struct Heard {
    int lines = 0;
};

void logs() {
    Heard heard;
    Ort::Env env(
        ORT_LOGGING_LEVEL_VERBOSE, "heard",
        [](void *data, OrtLoggingLevel, const char *, const char *, const char *, const char *) {
            static_cast<Heard *>(data)->lines++;
        },
        &heard);
    Ort::Session session(env, path("two").c_str(), Ort::SessionOptions{});
    std::printf("heard %d\n", heard.lines > 0);
}

void pools() {
    Ort::ThreadingOptions threading;
    threading.SetGlobalIntraOpNumThreads(2).SetGlobalInterOpNumThreads(1).SetGlobalSpinControl(0);
    Ort::Env env(threading, ORT_LOGGING_LEVEL_FATAL, "pools");
    Ort::SessionOptions options;
    options.DisablePerSessionThreads();
    Ort::Session session(env, path("two").c_str(), options);
    std::vector<float> a = numbers(6, 1);
    Ort::Value feeds[] = {tensor(a, {2, 3}), tensor(a, {2, 3})};
    show(session.Run(Ort::RunOptions{}, both_in, feeds, 2, both_out, 2));
}

#if ORT_API_VERSION >= 23
void edited(Ort::Env &env) {
    std::vector<int64_t> shape{2, 2};
    auto type = Ort::TypeInfo::CreateTensorInfo(
        Ort::TensorTypeAndShapeInfo(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, shape).GetConst());
    std::vector<float> weights = numbers(4, 1), x = numbers(4, 10);
    Ort::Graph graph;
    std::vector<Ort::ValueInfo> inputs, outputs;
    inputs.emplace_back("x", type.GetConst());
    outputs.emplace_back("y", type.GetConst());
    graph.SetInputs(inputs);
    graph.SetOutputs(outputs);
    Ort::Value given = tensor(x, {2, 2}), fixed = tensor(weights, {2, 2});
    graph.AddInitializer("w", fixed, false);
    std::vector<std::string> names{"x", "w"}, results{"y"};
    Ort::Node node("MatMul", "", "product", names, results);
    graph.AddNode(node);
    Ort::Model model({{"", 18}});
    model.AddGraph(graph);
    Ort::Session session(env, model, Ort::SessionOptions{});
    const char *const in[] = {"x"}, *const out[] = {"y"};
    show(session.Run(Ort::RunOptions{}, in, &given, 1, out, 1));
}

void newer(Ort::Env &env) {
    Ort::PrepackedWeightsContainer container;
    Ort::Session packed(env, path("weights").c_str(), Ort::SessionOptions{}, container);
    std::printf("%zu\n", packed.GetOutputCount());
    Ort::Session session(env, path("two").c_str(), Ort::SessionOptions{});
    for (const std::string &each : session.GetInputNames()) std::printf("input %s\n", each.c_str());
    for (const std::string &each : session.GetOutputNames()) std::printf("output %s\n", each.c_str());
    std::printf("opset %d\n", session.GetOpset(""));
    for (const auto &each : session.GetMemoryInfoForInputs()) std::printf("%s\n", each.GetAllocatorName().c_str());
    for (const auto &each : env.GetEpDevices())
        if (std::strcmp(each.EpName(), "CPUExecutionProvider") == 0)
            std::printf("%s %d\n", each.EpVendor(), each.Device().Type());
    Ort::KeyValuePairs pairs;
    pairs.Add("key", "value");
    std::printf("%s\n", pairs.GetValue("key"));
    edited(env);
}
#endif

}  // namespace

int main(int count, char **words) {
    if (count < 2) return 2;
    folder = words[1];
    try {
        logs();
        Ort::Env env(ORT_LOGGING_LEVEL_FATAL, "wrapped");
        std::printf("%s\n", Ort::GetVersionString().c_str());
        std::vector<std::string> providers = Ort::GetAvailableProviders();
        std::printf("%s\n", providers.back().c_str());
        const std::pair<const char *, std::function<void()>> all[] = {
            {"runs", [&] { runs(env, "two"); }},
            {"runs elsewhere", [&] { runs(env, "two_in_service"); }},
            {"bindings", [&] { bindings(env, "two"); }},
            {"bindings elsewhere", [&] { bindings(env, "two_in_service"); }},
            {"asynchronous", [&] { asynchronous(env, "two"); }},
            {"asynchronous elsewhere", [&] { asynchronous(env, "two_in_service"); }},
            {"allocators", [&] { allocators(env); }}, {"strings", [&] { strings(env); }},
            {"containers", [&] { containers(env); }}, {"halves", [&] { halves(env); }},
            {"initializers", [&] { initializers(env); }}, {"sparse", sparse},
#if ORT_API_VERSION >= 23
            {"newer", [&] { newer(env); }},
#endif
        };
        for (const auto &each : all) {
            std::printf("# %s\n", each.first);
            each.second();
        }
        env = Ort::Env(nullptr);
        pools();
    } catch (const std::exception &error) {
        std::printf("thrown: %s\n", error.what());
        return 3;
    }
    std::puts("right");
    return 0;
}
