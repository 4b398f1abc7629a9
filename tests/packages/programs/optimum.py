# /// script
# dependencies = ["optimum-onnx", "torch==2.13.*"]
# ///
"""Text written by a pipeline of transformers, on a small GPT-2 with drawn weights that optimum exports."""

import numpy as np
import torch
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSequenceClassification

from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1,
                           eos_token_id=96)).eval().save_pretrained("gpt")
BertForSequenceClassification(BertConfig(
    vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    num_labels=3)).eval().save_pretrained("bert")
tokens = torch.tensor(np.random.default_rng(0).integers(2, 90, (2, 7)))
mask = torch.ones_like(tokens)
results = {}
for cache in (True, False):
    model = ORTModelForCausalLM.from_pretrained("gpt", export=True, use_cache=cache, use_io_binding=cache)
    written = model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False, use_cache=cache)
    results[f"written{cache}"] = written.numpy()
judge = ORTModelForSequenceClassification.from_pretrained("bert", export=True)
results["logits"] = judge(input_ids=tokens, attention_mask=mask).logits.detach().numpy()
