// Handwritten digits classified in C++17, by a model that was compiled ahead of time:
//
//     orthrus compile digits.onnx --emit library --dim N=1..32 --out digits
//     c++ -std=c++17 classify.cpp -Idigits/include -Ldigits/lib -ldigits -Wl,-rpath,$PWD/digits/lib -o classify
//     ./classify images.bin
//
// images.bin: images of 8 x 8 floats, one behind the other. A line is printed for each.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include "digits.h"
#include "orthrus.hpp"

static std::vector<float> read(const char *path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    std::vector<float> values(bytes.size() / sizeof(float));
    std::copy(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(values.size() * sizeof(float)),
              reinterpret_cast<char *>(values.data()));
    return values;
}

int main(int count, char **words) try {
    if (count < 2) throw orthrus::Error(ORTHRUS_INVALID_ARGUMENT, "usage: classify IMAGES");
    const std::vector<float> pixels = read(words[1]);
    const auto images = static_cast<std::int64_t>(pixels.size() / 64);

    orthrus::Model model(digits_library());
    orthrus::Context context(model, orthrus::Options(1));
    context.reshape({{images, 1, 8, 8}});
    std::vector<std::int64_t> labels(static_cast<std::size_t>(context.output_shape(0).at(0)));
    std::vector<float> scores(labels.size() * 10);
    context.run({pixels.data()}, {labels.data(), scores.data()});
    for (std::size_t i = 0; i < labels.size(); i++)
        std::printf("%d %.9g\n", static_cast<int>(labels[i]),
                    static_cast<double>(scores[i * 10 + static_cast<std::size_t>(labels[i])]));
    return 0;
} catch (const orthrus::Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
