// Models compiled by Orthrus, from C++17: what orthrus.h has, with owners, vectors and exceptions.
//
//     orthrus::Model model(digits_library());
//     orthrus::Context context(model);
//     std::vector<float> image(64), scores(10);
//     context.run({image.data()}, {scores.data()});
//
// A model outlives its contexts; a context serves one thread at a time. All functions that can fail throw
// orthrus::Error, which holds the status and what was wrong.
#ifndef ORTHRUS_HPP
#define ORTHRUS_HPP

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "orthrus_library.h"

namespace orthrus {

class Error : public std::runtime_error {
public:
    Error(int status, const std::string &text) : std::runtime_error(text), status_(status) {}
    int status() const noexcept { return status_; }

private:
    int status_;
};

using Shape = std::vector<std::int64_t>;

// Options of a context or model; the same as the struct, made with its defaults.
struct Options : orthrus_options {
    Options() : orthrus_options(ORTHRUS_OPTIONS) {}
    explicit Options(int threads) : Options() { this->threads = threads; }
};

class Model {
public:
    explicit Model(const orthrus_library *library, const Options &options = {}, const char *weights = nullptr)
        : library_(library), model_(nullptr, library->close) {
        orthrus_model *made = nullptr;
        check(library->open(weights, &options, &made));
        model_.reset(made);
    }

    const orthrus_library &library() const noexcept { return *library_; }
    orthrus_model *get() const noexcept { return model_.get(); }

    std::size_t inputs() const { return library_->inputs(get()); }
    std::size_t outputs() const { return library_->outputs(get()); }
    // Throws for an index beyond the last.
    const orthrus_value &input(std::size_t index) const { return there(library_->input(get(), index)); }
    const orthrus_value &output(std::size_t index) const { return there(library_->output(get(), index)); }
    std::string target() const { return library_->target(get(), library_->chosen_target(get())); }
    // What is known by `key`, empty where nothing is.
    std::string metadata(const char *key) const {
        const char *found = library_->metadata(get(), key);
        return found ? found : "";
    }

    void check(int status) const {
        if (status != ORTHRUS_OK)
            throw Error(status, std::string(library_->status_text(status)) + ": " + library_->last_error());
    }

private:
    static const orthrus_value &there(const orthrus_value *value) {
        if (!value) throw Error(ORTHRUS_INVALID_ARGUMENT, "there are not so many inputs or outputs");
        return *value;
    }

    const orthrus_library *library_;
    std::unique_ptr<orthrus_model, void (*)(orthrus_model *)> model_;
};

class Context {
public:
    explicit Context(const Model &model, const Options &options = {})
        : model_(&model), context_(nullptr, model.library().destroy) {
        orthrus_context *made = nullptr;
        model.check(model.library().create(model.get(), &options, &made));
        context_.reset(made);
    }

    orthrus_context *get() const noexcept { return context_.get(); }

    // From now on inputs have these shapes.
    void reshape(const std::vector<Shape> &shapes) {
        if (shapes.size() != model_->inputs())
            throw Error(ORTHRUS_INVALID_ARGUMENT, "a shape is needed for each input");
        std::vector<const std::int64_t *> rows;
        for (std::size_t i = 0; i < shapes.size(); i++) {
            if (shapes[i].size() != model_->input(i).rank)
                throw Error(ORTHRUS_SHAPE, std::string(model_->input(i).name) + " has another rank");
            rows.push_back(shapes[i].data());
        }
        model_->check(model_->library().reshape(get(), rows.data()));
    }

    Shape input_shape(std::size_t index) const {
        const auto &value = model_->input(index);
        const std::int64_t *sizes = model_->library().input_shape(get(), index);
        return Shape(sizes, sizes + value.rank);
    }
    Shape output_shape(std::size_t index) const {
        const auto &value = model_->output(index);
        const std::int64_t *sizes = model_->library().output_shape(get(), index);
        return Shape(sizes, sizes + value.rank);
    }

    void run(const std::vector<const void *> &inputs, const std::vector<void *> &outputs) {
        if (inputs.size() != model_->inputs() || outputs.size() != model_->outputs())
            throw Error(ORTHRUS_INVALID_ARGUMENT, "a pointer is needed for each input and output");
        model_->check(model_->library().run(get(), inputs.data(), outputs.data()));
    }

    // Runs end before their next step once `*stop` is not 0; null for never.
    void stop_at(const std::int64_t *stop) { model_->library().stop_at(get(), stop); }

private:
    const Model *model_;
    std::unique_ptr<orthrus_context, void (*)(orthrus_context *)> context_;
};

} // namespace orthrus
#endif
