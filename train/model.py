# SPDX-License-Identifier: Apache-2.0
"""Geometry of `nano`, construction of the network and export of its checkpoint."""

import json
import os
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_5 import modeling_qwen3_5 as family
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

import delta

VOCAB = 8192
ORDINARY = 8159                       # first added token, <|endoftext|>
EOT, IM_START, IM_END = 8159, 8160, 8161

ADDED = [  # (text, hidden on decode), the family's order, ids 8159..8191
    ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
    ("<|object_ref_start|>", True), ("<|object_ref_end|>", True),
    ("<|box_start|>", True), ("<|box_end|>", True),
    ("<|quad_start|>", True), ("<|quad_end|>", True),
    ("<|vision_start|>", True), ("<|vision_end|>", True), ("<|vision_pad|>", True),
    ("<|image_pad|>", True), ("<|video_pad|>", True),
    ("<tool_call>", False), ("</tool_call>", False),
    ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False), ("<|repo_name|>", False), ("<|file_sep|>", False),
    ("<tool_response>", False), ("</tool_response>", False),
    ("<think>", False), ("</think>", False),
    ("<|audio_start|>", True), ("<|audio_end|>", True), ("<tts_pad>", True),
    ("<tts_text_bos>", True), ("<tts_text_eod>", True), ("<tts_text_bos_single>", True),
    ("<|audio_pad|>", True),
]

LAYERS = 8
TEXT = {
    "vocab_size": VOCAB, "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6, "initializer_range": 0.02, "tie_word_embeddings": False,
    "attention_bias": False, "attention_dropout": 0.0,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
    "layer_types": ["full_attention" if (n + 1) % 4 == 0 else "linear_attention"
                    for n in range(LAYERS)],
    "bos_token_id": EOT, "eos_token_id": EOT, "pad_token_id": None,
}
ROPE = {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2], "mrope_interleaved": True}
GENERATION = {"bos_token_id": EOT, "pad_token_id": EOT, "eos_token_id": [IM_END, EOT],
              "do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.95}


def text_config():
    """The transformers configuration object of the text model."""
    config = Qwen3_5TextConfig(**TEXT, rope_parameters=dict(ROPE), partial_rotary_factor=0.25)
    config._attn_implementation = "sdpa"
    return config


def published_config():
    """config.json as the family publishes it: the text part nested under text_config."""
    text = dict(TEXT, model_type="qwen3_5_text", dtype="bfloat16", full_attention_interval=4,
                attn_output_gate=True, output_gate_type="swish", partial_rotary_factor=0.25,
                mamba_ssm_dtype="float32", mtp_num_hidden_layers=0, use_cache=True,
                rope_parameters=dict(ROPE))
    return {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
            "dtype": "bfloat16", "tie_word_embeddings": False, "language_model_only": True,
            "text_config": text}


def build(seed=0):
    """A freshly initialised network in fp32 with the fast delta rule installed."""
    delta.install(family)
    torch.manual_seed(seed)
    net = family.Qwen3_5ForCausalLM(text_config())
    net.config.use_cache = False
    with torch.no_grad():
        for layer in net.model.layers:
            if hasattr(layer, "linear_attn"):
                gdn = layer.linear_attn
                gdn.A_log.uniform_(0.02, 8.0).log_()           # decays from slow to fast
                gdn.dt_bias.copy_(inverse_softplus(torch.empty_like(gdn.dt_bias)
                                                   .uniform_(-6.9, -2.3).exp()))
                torch.nn.init.uniform_(gdn.conv1d.weight, -0.5, 0.5)
    return net.float()


def recall_start(net, layers=(0, 4), seed=1):
    """Start a fresh network with Gated DeltaNet layers that look up what followed the last time these tokens were read.

    Queries and keys share one random projection; the convolution lets a query see the present token and a key the one
    before it, both with the two tokens further back at falling weight; nothing decays. A query then finds the key
    written after the same tokens; its value is the token that followed them, and reaches the head as its own embedding,
    because the head starts as a copy of the embedding and the output projection as the inverse of the values'. A component
    that all embeddings share opens the output gate and is hidden from queries and keys.
    """
    width, key = TEXT["hidden_size"], TEXT["linear_num_key_heads"] * TEXT["linear_key_head_dim"]
    taps = torch.tensor([0.3, 0.6, 1.0])
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(width, generator=g).sign()
    with torch.no_grad():
        net.lm_head.weight.copy_(net.model.embed_tokens.weight * 3)
        net.model.embed_tokens.weight += 0.02 * common
        for n in layers:
            gdn = net.model.layers[n].linear_attn
            seen = torch.randn(key, width, generator=g) * 0.03
            seen -= (seen @ common)[:, None] * common / width
            values = torch.linalg.qr(torch.randn(width, width, generator=g))[0] * 0.5
            gdn.in_proj_qkv.weight.copy_(torch.cat((seen, seen, values)))
            gdn.out_proj.weight.copy_(values.t() * 0.4)
            gdn.in_proj_z.weight.copy_((common * 2 / width).expand(width, width))
            gdn.conv1d.weight.zero_()
            gdn.conv1d.weight[:key, 0, 1:] = taps
            gdn.conv1d.weight[key:2 * key, 0, :3] = taps
            gdn.conv1d.weight[2 * key:, 0, 3] = 1
            gdn.A_log.fill_(-3.0)
            gdn.dt_bias.fill_(-3.0)


def inverse_softplus(y):
    """x with log(1 + exp(x)) = y."""
    return y + torch.log(-torch.expm1(-y))


def to_published(state):
    """Rename the text class's tensors to the published multimodal names, in bf16."""
    return {name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name:
            tensor.detach().to(torch.bfloat16).contiguous().clone() for name, tensor in state.items()}


def published_weights(folder):
    """Tensors of the text model of a checkpoint, one file or sharded, under the text class's names, in the types they are stored in."""
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    state = {}
    for name in files:
        for key, tensor in load_file(os.path.join(folder, name)).items():
            if not key.startswith(("model.visual.", "mtp.")):
                state[key.replace("model.language_model.", "model.", 1)] = tensor
    return state


def load_published(folder, dtype=torch.float32):
    """Network with the weights of any checkpoint of the family, in its own geometry."""
    delta.install(family)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    text = Qwen3_5TextConfig(**{k: v for k, v in config.get("text_config", config).items() if k not in ("model_type", "dtype", "architectures")})
    text._attn_implementation = "sdpa"
    text.use_cache = False
    with torch.device("meta"):
        net = family.Qwen3_5ForCausalLM(text)
    net.load_state_dict({name: t.to(dtype) for name, t in published_weights(folder).items()}, assign=True)
    fresh = family.Qwen3_5ForCausalLM(Qwen3_5TextConfig(**dict(text.to_dict(), num_hidden_layers=1, layer_types=text.layer_types[:1], vocab_size=8)))
    net.model.rotary_emb = fresh.model.rotary_emb      # its frequencies are no weights
    return net.eval()


def adopt_tokens(tokenizer):
    """Take the ids of the marks that end texts and turns from a tokenizer of the family."""
    global EOT, IM_START, IM_END
    EOT, IM_START, IM_END = (tokenizer.token_to_id(mark) for mark in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))


def export(net, folder, side_files):
    """Write a complete checkpoint to a temporary sibling, then move it into place.

    side_files: paths of tokenizer.json, tokenizer_config.json, chat_template.jinja.
    """
    folder = os.path.abspath(folder)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    temp = tempfile.mkdtemp(prefix=".export-", dir=os.path.dirname(folder))
    os.chmod(temp, 0o755)
    for path in side_files:
        shutil.copy(path, temp)
    for name, value in (("config.json", published_config()), ("generation_config.json", GENERATION)):
        with open(os.path.join(temp, name), "w") as f:
            json.dump(value, f, indent=2)
            f.write("\n")
    if net is not None:
        save_file(to_published(net.state_dict()), os.path.join(temp, "model.safetensors"),
                  metadata={"format": "pt"})
        os.chmod(os.path.join(temp, "model.safetensors"), 0o644)
    old = folder + ".old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.exists(folder):
        os.rename(folder, old)
    os.rename(temp, folder)
    shutil.rmtree(old, ignore_errors=True)
