"""`python -m orthrus.transformers.bert_test_data`: inputs for a BERT, and what the model makes of them.

In: a model with tokens, segments and a mask as inputs. Out: folders `test_data_set_0`, ... of `input_0.pb`,
`output_0.pb`, ... The same seed gives the arrays that onnxruntime's tool of this name draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...shown import tell
from . import inputs as declared
from .arguments import BERT, parser

_KINDS = (np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64))
_TOKENS = 10000
_MASK_INPUT = 7
"""Where EmbedLayerNormalization takes its mask."""


def _cast(values: np.ndarray, value: Any) -> np.ndarray:
    dtype = declared.dtype_of(value)
    if dtype not in _KINDS:
        raise InvalidArgument(f"Input {value.name} has a type that no BERT has", node=value.name, found=dtype,
                              expected="float32, int32 or int64", cure="name the right input")
    return values.astype(dtype)


def fake_input_ids_data(input_ids: Any, batch_size: int, sequence_length: int, dictionary_size: int
                        ) -> np.ndarray:
    """Random tokens below `dictionary_size`, [batch, sequence], of the type that the input declares."""
    return _cast(np.random.randint(dictionary_size, size=(batch_size, sequence_length)), input_ids)


def fake_segment_ids_data(segment_ids: Any, batch_size: int, sequence_length: int) -> np.ndarray:
    """Segments, [batch, sequence]: all 0."""
    return _cast(np.zeros((batch_size, sequence_length), np.int32), segment_ids)


def get_random_length(max_sequence_length: int, average_sequence_length: int) -> int:
    """A length of 1 to `max_sequence_length`, drawn evenly around the mean."""
    if not 1 <= average_sequence_length <= max_sequence_length:
        raise InvalidArgument("The mean length is none of a row", found=average_sequence_length,
                              expected=f"1 to {max_sequence_length}", cure="set average_sequence_length")
    least = max(1, 2 * average_sequence_length - max_sequence_length)
    most = min(max_sequence_length, 2 * average_sequence_length - 1)
    return random.randint(least, most)


def fake_input_mask_data(input_mask: Any, batch_size: int, sequence_length: int, average_sequence_length: int,
                         random_sequence_length: bool, mask_type: int = 2) -> np.ndarray:
    """The mask of rows with padding at their end: of type 1 the lengths, [batch]; 2 ones and zeros, [batch,
    sequence]; 3 the lengths, then where each row's queries and keys begin and the last ends,
    [3 * batch + 2]."""
    if mask_type not in (1, 2, 3):
        raise InvalidArgument("There is no such type of mask", node=input_mask.name, found=mask_type,
                              expected="1, 2 or 3", cure="set mask_type")
    lengths = np.array([get_random_length(sequence_length, average_sequence_length)
                        if random_sequence_length else average_sequence_length
                        for _ in range(batch_size)], np.int32)
    if mask_type == 2:
        return _cast(np.arange(sequence_length) < lengths[:, None], input_mask)
    if mask_type == 1:
        return _cast(lengths, input_mask)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return _cast(np.concatenate((lengths, starts, starts)), input_mask)


def output_test_data(directory: str, inputs: dict[str, np.ndarray]) -> None:
    """Write `input_0.pb`, ... into a folder, which is made."""
    from ...tools.testrunner import data

    data.write(Path(directory), inputs)


def fake_test_data(batch_size: int, sequence_length: int, test_cases: int, dictionary_size: int,
                   verbose: bool, random_seed: int, input_ids: Any, segment_ids: Any, input_mask: Any,
                   average_sequence_length: int, random_sequence_length: bool, mask_type: int
                   ) -> list[dict[str, np.ndarray]]:
    """Feeds for a BERT; `segment_ids` and `input_mask` are None where the model has no such input."""
    if input_ids is None:
        raise InvalidArgument("There is no input of tokens", found="None", expected="an input",
                              cure="name it: --input_ids_name")
    np.random.seed(random_seed)
    random.seed(random_seed)
    cases = []
    for _ in range(test_cases):
        case = {input_ids.name: fake_input_ids_data(input_ids, batch_size, sequence_length, dictionary_size)}
        if segment_ids is not None:
            case[segment_ids.name] = fake_segment_ids_data(segment_ids, batch_size, sequence_length)
        if input_mask is not None:
            case[input_mask.name] = fake_input_mask_data(input_mask, batch_size, sequence_length,
                                                         average_sequence_length, random_sequence_length,
                                                         mask_type)
        cases.append(case)
    if verbose and cases:
        tell(f"Example inputs {cases[0]}")
    return cases


def generate_test_data(batch_size: int, sequence_length: int, test_cases: int, seed: int, verbose: bool,
                       input_ids: Any, segment_ids: Any, input_mask: Any, average_sequence_length: int,
                       random_sequence_length: bool, mask_type: int, dictionary_size: int = _TOKENS
                       ) -> list[dict[str, np.ndarray]]:
    """`test_cases` feeds for a BERT."""
    return fake_test_data(batch_size, sequence_length, test_cases, dictionary_size, verbose, seed, input_ids,
                          segment_ids, input_mask, average_sequence_length, random_sequence_length, mask_type)


def get_graph_input_from_embed_node(onnx_model: Any, embed_node: Any, input_index: int) -> Any | None:
    """The graph's input that feeds a node's input, as it is or through a Cast; None where there is none."""
    if input_index >= len(embed_node.input):
        return None
    graph = declared.graph_of(onnx_model)
    name = embed_node.input[input_index]
    casts = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    return next((each for each in declared.open_inputs(onnx_model) if each.name in (name, casts.get(name))),
                None)


def find_bert_inputs(onnx_model: Any, input_ids_name: str | None = None, segment_ids_name: str | None = None,
                     input_mask_name: str | None = None) -> tuple[Any | None, Any | None, Any | None]:
    """The inputs of tokens, segments and mask: those named, else those of the fused embedding, else three
    whose names tell. Raises ValueError where they cannot be told."""
    values = declared.open_inputs(onnx_model)
    if input_ids_name is not None:
        return _named(values, (input_ids_name, segment_ids_name, input_mask_name))
    embeds = [node for node in declared.graph_of(onnx_model).node
              if node.op_type == "EmbedLayerNormalization"]
    if len(embeds) == 1:
        found = [get_graph_input_from_embed_node(onnx_model, embeds[0], i) for i in (0, 1, _MASK_INPUT)]
        if found[2] is None:
            found[2] = next((each for each in values if "mask" in each.name.lower()), None)
        if found[0] is None:
            raise ValueError("No graph input feeds the tokens of EmbedLayerNormalization: name the inputs")
        return found[0], found[1], found[2]
    return _told(values)


def _named(values: Sequence[Any], names: Iterable[str | None]) -> Any:
    table = {each.name: each for each in values}
    for name in names:
        if name is not None and name not in table:
            raise ValueError(f"Graph does not have input named {name}; its inputs are {', '.join(table)}")
    expected = sum(name is not None for name in names)
    if len(values) != expected:
        raise ValueError(f"Expect the graph to have {expected} inputs. Got {len(values)}: {', '.join(table)}")
    return tuple(None if name is None else table[name] for name in names)


def _told(values: Sequence[Any]) -> tuple[Any, Any, Any]:
    if len(values) != 3:
        raise ValueError(f"Expect the graph to have 3 inputs. Got {len(values)}")
    masks = [each for each in values if "mask" in each.name.lower()]
    segments = [each for each in values if each not in masks
                and any(part in each.name.lower() for part in ("token", "segment"))]
    rest = [each for each in values if each not in masks and each not in segments]
    if not len(masks) == len(segments) == len(rest) == 1:
        raise ValueError("Fail to assign 3 inputs. You might try rename the graph inputs.")
    return rest[0], segments[0], masks[0]


def get_bert_inputs(onnx_file: str, input_ids_name: str | None = None, segment_ids_name: str | None = None,
                    input_mask_name: str | None = None) -> tuple[Any | None, Any | None, Any | None]:
    """The inputs of tokens, segments and mask in a file, as `find_bert_inputs` finds them."""
    import onnx

    model = onnx.load(onnx_file, load_external_data=False)
    return find_bert_inputs(model, input_ids_name, segment_ids_name, input_mask_name)


def vocabulary(onnx_model: Any, input_ids: Any, most: int = _TOKENS) -> int:
    """How many tokens may be drawn from: `most`, or the rows of a smaller embedding that they look up."""
    graph = declared.graph_of(onnx_model)
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 2}
    names = {input_ids.name} | {node.output[0] for node in graph.node
                                if node.op_type == "Cast" and node.input[0] == input_ids.name}
    looked_up = [node.input[0] for node in graph.node if node.op_type == "Gather" and node.input[1] in names]
    looked_up += [node.input[2] for node in graph.node
                  if node.op_type == "EmbedLayerNormalization" and node.input[0] in names]
    return min([most, *(rows[name] for name in looked_up if name in rows)])


def parse_arguments() -> Any:
    """The command's flags."""
    return parser("Write random inputs for a BERT, and what the model makes of them.", "model", "output_dir",
                  "batch_size", "sequence_length", "samples", "seed", "verbose", *BERT,
                  more={"only_input_tensors": (("--only_input_tensors",), {
                      "action": "store_true", "help": "write no outputs"})},
                  model={"required": True}, sequence_length={"default": 128}).parse_args()


def create_and_save_test_data(model: str, output_dir: str, batch_size: int, sequence_length: int,
                              test_cases: int, seed: int, verbose: bool, input_ids_name: str | None,
                              segment_ids_name: str | None, input_mask_name: str | None,
                              only_input_tensors: bool, average_sequence_length: int,
                              random_sequence_length: bool, mask_type: int) -> None:
    """Write `test_cases` folders below `output_dir`: inputs, and outputs as this runtime computes them."""
    import onnx

    import orthrus as ort

    from ...tools.testrunner import data

    proto = onnx.load(model, load_external_data=False)
    names = find_bert_inputs(proto, input_ids_name, segment_ids_name, input_mask_name)
    cases = generate_test_data(batch_size, sequence_length, test_cases, seed, verbose, *names,
                               average_sequence_length, random_sequence_length, mask_type,
                               vocabulary(proto, names[0]))
    session = None if only_input_tensors else ort.InferenceSession(model)
    for i, case in enumerate(cases):
        outputs: dict[str, Any] = {}
        if session is not None:
            outputs = dict(zip((each.name for each in session.get_outputs()), session.run(None, case),
                               strict=True))
        data.write(Path(output_dir) / f"test_data_set_{i}", case, outputs)


def main() -> None:
    """The command."""
    given = parse_arguments()
    average = given.average_sequence_length
    folder = given.output_dir or str(
        Path(given.model).parent / f"batch_{given.batch_size}_seq_{given.sequence_length}")
    create_and_save_test_data(
        given.model, folder, given.batch_size, given.sequence_length, given.samples, given.seed,
        given.verbose, given.input_ids_name, given.segment_ids_name, given.input_mask_name,
        given.only_input_tensors, average if average > 0 else given.sequence_length,
        given.random_sequence_length, given.mask_type)
    tell(f"Test data is saved to directory: {folder}")


if __name__ == "__main__":
    main()
