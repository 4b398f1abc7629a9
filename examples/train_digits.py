"""Train the digit classifier that `orthrus demo` runs, with nothing but numpy, and write it as an ONNX model.

In: scikit-learn's handwritten digits (1,797 images of 8 by 8). Out: `digits.onnx` and `digits.npz` (the
held-out images and their labels) in the package's demo folder, or in the folder given as the one argument.
The split, the weights and the batches follow one seed.

    python examples/train_digits.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "src" / "orthrus" / "demo"
SEED, EPOCHS, BATCH, RATE, HELD_OUT = 7, 40, 32, 2e-3, 360

Weights = dict[str, np.ndarray]


def initial(rng: np.random.Generator) -> Weights:
    """Weights by He's rule: two 3x3 convolutions of 16 and 32 channels, and one fully connected layer."""
    def layer(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    zeros = {name: np.zeros(n, np.float32) for name, n in (("b1", 16), ("b2", 32), ("b3", 10))}
    return {"w1": layer(16, 1, 3, 3), "w2": layer(32, 16, 3, 3), "w3": layer(10, 32 * 4 * 4), **zeros}


def windows(x: np.ndarray) -> np.ndarray:
    """[n, c, h, w] -> [n, h, w, c * 9]: the 3x3 surroundings of every pixel, zeros beyond the border."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    cut = sliding_window_view(padded, (3, 3), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
    return cut.reshape(*cut.shape[:3], -1)


def conv(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The convolution and the windows its gradient needs."""
    cols = windows(x)
    return (cols @ w.reshape(len(w), -1).T + b).transpose(0, 3, 1, 2), cols


def conv_gradient(dy: np.ndarray, cols: np.ndarray, w: np.ndarray
                  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients by input, weights and bias: the input's is a convolution with the kernel turned around."""
    flat = dy.transpose(0, 2, 3, 1).reshape(-1, len(w))
    dw = (flat.T @ cols.reshape(len(flat), -1)).reshape(w.shape)
    turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    dx, _ = conv(dy, turned, np.zeros(len(turned), np.float32))
    return dx, dw, flat.sum(axis=0)


def forward(p: Weights, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Scores [n, 10] for images [n, 1, 8, 8], and what the gradient needs again."""
    a1, cols1 = conv(x, p["w1"], p["b1"])
    r1 = np.maximum(a1, 0)
    tiles = r1.reshape(len(x), 16, 4, 2, 4, 2)
    pooled = tiles.max(axis=(3, 5))
    a2, cols2 = conv(pooled, p["w2"], p["b2"])
    flat = np.maximum(a2, 0).reshape(len(x), -1)
    kept = {"a1": a1, "cols1": cols1, "tiles": tiles, "pooled": pooled, "a2": a2, "cols2": cols2,
            "flat": flat}
    return flat @ p["w3"].T + p["b3"], kept


def gradients(p: Weights, x: np.ndarray, labels: np.ndarray) -> tuple[float, Weights]:
    """Mean cross entropy and its gradient by every weight."""
    scores, k = forward(p, x)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    probability = e / e.sum(axis=1, keepdims=True)
    rows = np.arange(len(x))
    loss = float(-np.log(probability[rows, labels] + 1e-12).mean())
    probability[rows, labels] -= 1
    dy = probability / len(x)
    g = {"w3": dy.T @ k["flat"], "b3": dy.sum(axis=0)}
    d2 = (dy @ p["w3"]).reshape(k["a2"].shape) * (k["a2"] > 0)
    dpool, g["w2"], g["b2"] = conv_gradient(d2, k["cols2"], p["w2"])
    winners = k["tiles"] == k["pooled"][:, :, :, None, :, None]
    share = winners / winners.sum(axis=(3, 5), keepdims=True)
    d1 = (share * dpool[:, :, :, None, :, None]).reshape(k["a1"].shape) * (k["a1"] > 0)
    _, g["w1"], g["b1"] = conv_gradient(d1.astype(np.float32), k["cols1"], p["w1"])
    return loss, g


def train(images: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Weights:
    """Adam with a cosine schedule, over images moved by up to a pixel."""
    p = initial(rng)
    mean, square = ({k: np.zeros_like(v) for k, v in p.items()} for _ in range(2))
    steps = EPOCHS * (len(images) // BATCH)
    for step in range(steps):
        pick = rng.integers(0, len(images), BATCH)
        shift = tuple(int(v) for v in rng.integers(-1, 2, 2))
        batch = np.roll(images[pick], shift, axis=(2, 3))
        loss, g = gradients(p, batch, labels[pick])
        rate = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
        for name in p:
            mean[name] = 0.9 * mean[name] + 0.1 * g[name]
            square[name] = 0.999 * square[name] + 0.001 * g[name] ** 2
            m, s = mean[name] / (1 - 0.9 ** (step + 1)), square[name] / (1 - 0.999 ** (step + 1))
            p[name] = (p[name] - rate * m / (np.sqrt(s) + 1e-8)).astype(np.float32)
        if step % 400 == 0:
            print(f"step {step:5} of {steps}  loss {loss:.4f}")
    return p


def export(p: Weights, accuracy: float) -> onnx.ModelProto:
    """The classifier as a model: `image` float [N, 1, 8, 8] of 0 to 16 -> `label` int64 [N], `probability`
    float [N, 10]."""
    node = helper.make_node
    nodes = [
        node("Mul", ["image", "scale"], ["scaled"], name="scale_pixels"),
        node("Conv", ["scaled", "w1", "b1"], ["c1"], name="conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("MaxPool", ["r1"], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["pooled", "w2", "b2"], ["c2"], name="conv2", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c2"], ["r2"], name="relu2"),
        node("Flatten", ["r2"], ["flat"], name="flatten"),
        node("Gemm", ["flat", "w3", "b3"], ["scores"], name="classify", transB=1),
        node("Softmax", ["scores"], ["probability"], name="softmax", axis=1),
        node("ArgMax", ["scores"], ["label"], name="argmax", axis=1, keepdims=0),
    ]
    weights = [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in p.items()]
    weights.append(numpy_helper.from_array(np.array(1 / 16, np.float32), "scale"))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "digits", [info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
                              [info("label", TensorProto.INT64, ["N"]),
                               info("probability", TensorProto.FLOAT, ["N", 10])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.producer_name = "train_digits.py"
    model.doc_string = "Handwritten digits of 8 by 8 pixels, from scikit-learn's digits data."
    model.ir_version = 8
    helper.set_model_props(model, {"accuracy": f"{accuracy:.4f}", "seed": str(SEED)})
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, measure on the held-out images, write both files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    rng = np.random.default_rng(SEED)
    data = load_digits()
    images, labels = data.images.astype(np.float32)[:, None], data.target.astype(np.int64)
    order = rng.permutation(len(images))
    test, rest = order[:HELD_OUT], order[HELD_OUT:]
    weights = train(images[rest] / 16, labels[rest], rng)
    scores, _ = forward(weights, images[test] / 16)
    accuracy = float((scores.argmax(axis=1) == labels[test]).mean())
    print(f"accuracy on {HELD_OUT} held-out images: {accuracy:.1%}")
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(export(weights, accuracy), folder / "digits.onnx")
    np.savez_compressed(folder / "digits.npz", image=images[test].astype(np.uint8),
                        label=labels[test].astype(np.uint8))
    if accuracy < 0.97:
        sys.exit("the accuracy is under 97 %: the training went wrong")


if __name__ == "__main__":
    main()
