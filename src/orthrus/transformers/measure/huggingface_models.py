"""Networks of the hub that are known: by name, the inputs, the exporter's version of ONNX's operators,
whether the weights need a file of their own, and the type the optimizer knows them by."""

from __future__ import annotations

MODEL_CLASSES = ["AutoModel", "AutoModelWithLMHead", "AutoModelForSequenceClassification",
                 "AutoModelForQuestionAnswering", "AutoModelForCausalLM"]
_OPSET = 16
_TEXT = ["input_ids"]
_MASKED = ["input_ids", "attention_mask"]
_BERT = ["input_ids", "attention_mask", "token_type_ids"]
_IMAGE = ["pixel_values"]
_GROUPS: tuple[tuple[list[str], str, str], ...] = (
    (_BERT, "bert", "bert-base-cased bert-large-cased"),
    (["input_ids", "mems"], "bert", "transfo-xl-wt103"),
    (_TEXT, "bert", "xlnet-base-cased xlnet-large-cased xlm-mlm-en-2048 xlm-mlm-ende-1024 xlm-mlm-enfr-1024"),
    (_MASKED, "bert", "roberta-base roberta-large roberta-large-mnli deepset/roberta-base-squad2 "
                      "distilroberta-base distilbert-base-uncased distilbert-base-uncased-distilled-squad"),
    (_TEXT, "bert", "ctrl camembert-base albert-base-v1 albert-large-v1 albert-xlarge-v1 albert-base-v2 "
                    "albert-large-v2 albert-xlarge-v2 xlm-roberta-base xlm-roberta-large "
                    "flaubert/flaubert_small_cased flaubert/flaubert_base_cased "
                    "microsoft/layoutlm-base-uncased microsoft/layoutlm-large-uncased "
                    "squeezebert/squeezebert-uncased squeezebert/squeezebert-mnli "
                    "squeezebert/squeezebert-mnli-headless"),
    (["input_ids", "visual_feats", "visual_pos"], "bert", "unc-nlp/lxmert-base-uncased"),
    (_IMAGE, "vit", "google/vit-base-patch16-224"),
    (_IMAGE, "swin", "microsoft/swin-base-patch4-window7-224 microsoft/swin-small-patch4-window7-224 "
                     "microsoft/swin-tiny-patch4-window7-224"),
)
_LARGE = frozenset({"xlm-mlm-en-2048", "ctrl", "albert-xlarge-v1", "albert-xlarge-v2", "xlm-roberta-large"})

MODELS = {name: (inputs, _OPSET, name in _LARGE, kind)
          for inputs, kind, names in _GROUPS for name in names.split()}
"""Inputs, version of the operators, weights apart, type: by name."""
INPUTS = {"vit": _IMAGE, "swin": _IMAGE, "bert": _BERT}
"""The inputs by the type in a network's configuration, where they are more than tokens and their mask."""


def described(name: str, model_type: str) -> tuple[list[str], int, bool, str]:
    """What `MODELS` says of a name; for another what follows from the type in its configuration."""
    kind = model_type if model_type in ("vit", "swin", "gpt2") else "bert"
    return MODELS.get(name, (INPUTS.get(model_type, _MASKED), _OPSET, False, kind))
