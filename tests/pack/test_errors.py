# SPDX-License-Identifier: Apache-2.0
"""Hostile and damaged sources and packages: each is refused with one exact line, and a refused pack
leaves no output."""
import json
import os
import shutil

import pytest

import tamper

P = "model.language_model."


@pytest.fixture()
def source(checkpoints, tmp_path):
    shutil.copytree(checkpoints("toy"), tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture()
def refuse(driver, tmp_path):
    def check(folder, *arguments):
        error = driver.pack(folder, tmp_path / "out", *arguments)
        assert error is not None, "the pack succeeded"
        assert not [p.name for p in tmp_path.iterdir() if p.name.startswith("out")]
        return error.replace(str(folder), "SRC")
    return check


def edit_config(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def edit_tensors(folder, change):
    header, data = tamper.read_header(folder / "model.safetensors")
    tamper.write_header(folder / "model.safetensors", change(header) or header, data)


# ---- safetensors ----

def test_truncated_data(source, refuse):
    path = source / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 10)
    header, data = tamper.read_header(path)
    last = max((e["data_offsets"][1], n) for n, e in header.items() if n != "__metadata__")
    assert refuse(source) == (f"'SRC/model.safetensors': tensor '{last[1]}' ends at byte {last[0]} of the data, "
                              f"which has only {len(data)}; the file is truncated")


def test_truncated_header(source, refuse):
    os.truncate(source / "model.safetensors", 100)
    header_bytes = int.from_bytes((source / "model.safetensors").read_bytes()[:8], "little")
    assert refuse(source) == (f"'SRC/model.safetensors' claims a header of {header_bytes} bytes but has only 92 after the "
                              "length; it is truncated or not safetensors")


def test_tiny_and_empty_files(source, refuse):
    os.truncate(source / "model.safetensors", 5)
    assert refuse(source) == "'SRC/model.safetensors' has 5 bytes; it is truncated or not safetensors"
    os.truncate(source / "model.safetensors", 0)
    assert refuse(source) == "'SRC/model.safetensors' is empty"


def test_header_of_an_exabyte(source, refuse):
    tamper.poke(source / "model.safetensors", 0, (1 << 60).to_bytes(8, "little"))
    assert refuse(source) == ("'SRC/model.safetensors' claims a header of 1152921504606846976 bytes; "
                              "the limit is 1048576")


def test_overlap(source, refuse):
    def change(header):
        a, b = header["lm_head.weight"], header[P + "embed_tokens.weight"]
        a["data_offsets"] = [x + 2 for x in b["data_offsets"]]
    edit_tensors(source, change)
    assert refuse(source) == (f"'SRC/model.safetensors': tensors '{P}embed_tokens.weight' and 'lm_head.weight' overlap")


@pytest.mark.parametrize("entry, text", [
    ({"dtype": "BF16", "shape": [512, 128], "data_offsets": [0, 4]},
     "has data_offsets [0, 4], which do not fit its shape and dtype BF16"),
    ({"dtype": "BF16", "shape": [512, 128], "data_offsets": [131072, 0]},
     "has data_offsets [131072, 0], which do not fit its shape and dtype BF16"),
    ({"dtype": "BF16", "shape": [2 ** 40, 2 ** 40], "data_offsets": [0, 4]}, None),
    ({"dtype": "BF17", "shape": [512, 128], "data_offsets": [0, 131072]}, "has unknown dtype 'BF17'"),
    ({"dtype": "BF16", "shape": [1] * 9, "data_offsets": [0, 2]}, "has 9 dimensions; the limit is 8"),
    ({"dtype": "BF16", "shape": [-1], "data_offsets": [0, 2]},
     "has a dimension that is not a whole number below 2^53"),
    ({"dtype": "BF16", "shape": [1.0], "data_offsets": [0, 2]},
     "has a dimension that is not a whole number below 2^53"),
    ({"dtype": "BF16", "shape": [1], "data_offsets": [0, 2], "x": 1},
     "needs exactly dtype, shape and data_offsets [begin, end]"),
])
def test_bad_entry(source, refuse, entry, text):
    edit_tensors(source, lambda h: h.update({"lm_head.weight": entry}))
    if text is None:
        assert refuse(source) == "'SRC/model.safetensors': the shape of tensor 'lm_head.weight' overflows"
    else:
        assert refuse(source) == f"'SRC/model.safetensors': tensor 'lm_head.weight' {text}"


@pytest.mark.parametrize("header, text", [
    (b"[1, 2, 3]", "'SRC/model.safetensors': the header does not begin with '{'; this is not safetensors"),
    (b'{"a": {"dtype": "BF16"', None),
    (b'{"a\\u0000b": {}}', "'SRC/model.safetensors': the header contains NUL"),
    (b'{"__metadata__": {"a": 1}}', "'SRC/model.safetensors': __metadata__ value 'a' is not a string"),
    (b'{"__metadata__": 5}', "'SRC/model.safetensors': __metadata__ is not an object"),
])
def test_bad_header(source, refuse, header, text):
    tamper.write_header(source / "model.safetensors", header, b"\0" * 64)
    if text:
        assert refuse(source) == text
    else:
        assert refuse(source).startswith("SRC/model.safetensors is not valid JSON: ")


def test_duplicate_key(source, refuse):
    entry = b'"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}'
    tamper.write_header(source / "model.safetensors", b"{" + entry + b"," + entry + b"}", b"\0" * 64)
    assert "duplicate object key" in refuse(source)


def test_tensor_in_two_files(source, refuse):
    shutil.copy(source / "model.safetensors", source / "other.safetensors")
    assert refuse(source) == "tensor 'lm_head.weight' is in two files of the checkpoint"


def test_index_names_a_missing_file(checkpoints, tmp_path, refuse):
    shutil.copytree(checkpoints("toy", shards=2), tmp_path / "source")
    os.remove(tmp_path / "source/model-00002-of-00002.safetensors")
    assert refuse(tmp_path / "source") == ("model.safetensors.index.json names 'model-00002-of-00002.safetensors', "
                                           "which is not in the folder")


def test_index_that_leaves_the_folder(checkpoints, tmp_path, refuse):
    shutil.copytree(checkpoints("toy", shards=2), tmp_path / "source")
    (tmp_path / "source/model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}')
    assert refuse(tmp_path / "source") == "model.safetensors.index.json: 'a' is not in a plain safetensors file"


# ---- tensors against the geometry ----

def test_missing_tensor(source, refuse):
    edit_tensors(source, lambda h: h.pop(P + "layers.3.self_attn.k_norm.weight") and None)
    assert refuse(source) == f"source has no tensor '{P}layers.3.self_attn.k_norm.weight'"


def test_missing_head(source, refuse):
    edit_tensors(source, lambda h: h.pop("lm_head.weight") and None)
    assert refuse(source) == "source has no tensor 'lm_head.weight'"


def test_wrong_shape(source, refuse):
    def change(h):
        h[P + "layers.0.mlp.down_proj.weight"]["shape"] = [192, 128]
    edit_tensors(source, change)
    assert refuse(source) == (f"source tensor '{P}layers.0.mlp.down_proj.weight' has shape 192x128; "
                              "geometry 'toy' needs 128x192")


def test_wrong_dtype(source, refuse):
    def change(h):
        h[P + "norm.weight"]["dtype"] = "I16"
    edit_tensors(source, change)
    assert refuse(source) == f"source tensor '{P}norm.weight' has dtype I16; BF16, F16 and F32 are supported"


def test_tensor_without_a_place(source, refuse):
    def change(h):
        h[P + "layers.0.mlp.gate_proj.bias"] = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    edit_tensors(source, change)
    assert refuse(source) == (f"source tensor '{P}layers.0.mlp.gate_proj.bias' has no place in geometry 'toy'; "
                              "the checkpoint is of another model")


def test_vision_and_prediction_head_are_left_out(driver, source, tmp_path):
    def change(h):
        for name in ("model.visual.blocks.0.a", "model.visual.b", "mtp.fc.weight"):
            h[name] = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    edit_tensors(source, change)
    assert driver.pack(source, tmp_path / "out") is None
    assert "2 vision tensors are left out: the package holds the text model" in driver.notes
    assert "1 tensors of the extra prediction head are left out: the engine does not use it" in driver.notes


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80])
def test_value_that_is_not_finite(source, refuse, bits):
    header, data = tamper.read_header(source / "model.safetensors")
    begin = header[P + "layers.1.mlp.up_proj.weight"]["data_offsets"][0]
    start = (source / "model.safetensors").stat().st_size - len(data)
    tamper.poke(source / "model.safetensors", start + begin + (5 * 128 + 70) * 2, bits.to_bytes(2, "little"))
    assert refuse(source) == (f"source tensor '{P}layers.1.mlp.up_proj.weight' holds a value that is not finite in row 5")


def test_norm_that_is_not_finite(source, refuse):
    header, data = tamper.read_header(source / "model.safetensors")
    start = (source / "model.safetensors").stat().st_size - len(data)
    tamper.poke(source / "model.safetensors", start + header[P + "norm.weight"]["data_offsets"][0], b"\xc0\x7f")
    assert refuse(source) == f"source tensor '{P}norm.weight' holds a value that is not finite in row 0"


# ---- MLX ----

def test_mlx_scale_that_is_not_finite(checkpoints, tmp_path, refuse):
    folder = tmp_path / "source"
    shutil.copytree(checkpoints("toy", "mlx"), folder)
    header, data = tamper.read_header(folder / "model.safetensors")
    start = (folder / "model.safetensors").stat().st_size - len(data)
    name = "language_model.model.layers.2.mlp.down_proj"
    tamper.poke(folder / "model.safetensors", start + header[name + ".scales"]["data_offsets"][0], b"\xc0\x7f")
    assert refuse(folder) == f"source tensor '{name}.weight' holds a scale that is not finite in rows 0 to 15"


@pytest.mark.parametrize("change, text", [
    (lambda c: c["quantization"].update(bits=8),
     "config.json: quantization of 8 bits in groups of 64 is not supported; 4 bits in groups of 64 is"),
    (lambda c: c["quantization"].update(group_size=32),
     "config.json: quantization of 4 bits in groups of 32 is not supported; 4 bits in groups of 64 is"),
    (lambda c: c["quantization"].update(mode="mxfp4"),
     "config.json: quantization mode 'mxfp4' is not supported; only 'affine' is"),
    (lambda c: (c.pop("quantization"), c.update(quantization_config={"quant_method": "gptq"})),
     "config.json: quantisation method 'gptq' is not supported; use the bf16 checkpoint or an MLX 4-bit one"),
])
def test_mlx_config(checkpoints, tmp_path, refuse, change, text):
    shutil.copytree(checkpoints("toy", "mlx"), tmp_path / "source")
    edit_config(tmp_path / "source", change)
    assert refuse(tmp_path / "source") == text


def test_mlx_module_of_other_bits(checkpoints, tmp_path, refuse):
    folder = tmp_path / "source"
    shutil.copytree(checkpoints("toy-moe", "mlx"), folder)

    def change(h):      # the router at 4 bits
        e = h["language_model.model.layers.0.mlp.gate.weight"]
        e["shape"] = [16, 16]
        e["data_offsets"][1] = e["data_offsets"][0] + 16 * 16 * 4
    edit_tensors(folder, change)
    assert refuse(folder) == ("as 8-bit codes: source tensor 'language_model.model.layers.0.mlp.gate.weight' has shape "
                              "16x16; geometry 'toy-moe' needs 16x32")


# ---- config.json ----

@pytest.mark.parametrize("change, text", [
    (lambda c: c["text_config"].update(hidden_size=192), "hidden_size is 192 but 128 in 'toy'"),
    (lambda c: c["text_config"].update(num_hidden_layers=7), "num_hidden_layers is 7 but 8 in 'toy'"),
    (lambda c: c["text_config"].pop("head_dim"), "head_dim is missing but 32 in 'toy'"),
    (lambda c: c["text_config"].update(rms_norm_eps=1e-5), "rms_norm_eps is 1e-05 but 1e-06 in 'toy'"),
    (lambda c: c["text_config"]["rope_parameters"].update(rope_theta=1e6), "rope_theta is 1000000 but 10000000 in 'toy'"),
    (lambda c: c["text_config"]["rope_parameters"].update(rope_type="yarn"), "rope_type is yarn but default in 'toy'"),
    (lambda c: c["text_config"]["rope_parameters"].update(mrope_section=[1, 2, 1]), "mrope_section[0] is 1 but 2 in 'toy'"),
    (lambda c: c["text_config"].update(tie_word_embeddings=True), "tie_word_embeddings is 1 but 0 in 'toy'"),
    (lambda c: c["text_config"].update(attention_bias=True), "attention_bias is 1 but 0 in 'toy'"),
    (lambda c: c["text_config"].update(rope_scaling={"type": "yarn", "mrope_section": [2, 1, 1]}), "type is yarn but default in 'toy'"),
    (lambda c: c["text_config"].update(rope_scaling={"factor": 4}), "rope_scaling is set but absent in 'toy'"),
    (lambda c: c["text_config"].update(hidden_act="gelu"), "hidden_act is gelu but silu in 'toy'"),
    (lambda c: c["text_config"]["layer_types"].__setitem__(2, "full_attention"),
     "layer_types[2] is full_attention but linear_attention in 'toy'"),
])
def test_config_field(source, refuse, change, text):
    edit_config(source, change)
    assert refuse(source) == f"config.json: {text}, the closest model this build knows"


def test_unknown_architecture(source, refuse):
    edit_config(source, lambda c: c.update(architectures=["LlamaForCausalLM"], model_type="llama"))
    assert refuse(source) == ("config.json: architecture 'LlamaForCausalLM' (model_type 'llama') is not supported; "
                              "this engine runs the Qwen3.5 family")


def test_config_that_is_not_json(source, refuse):
    (source / "config.json").write_text("{")
    assert refuse(source).startswith("config.json is not valid JSON: ")
    (source / "config.json").write_text("[]")
    assert refuse(source) == "config.json is not a JSON object"
    (source / "config.json").write_text(" " * (1 << 20) + "{}")
    assert refuse(source) == "'SRC/config.json' has 1048578 bytes; the limit is 1048576"


def test_not_a_checkpoint(tmp_path, refuse):
    (tmp_path / "source").mkdir()
    assert refuse(tmp_path / "source") == "'SRC' has neither config.json nor manifest.json; it is not a checkpoint folder"
    assert refuse(tmp_path / "nothing") == "'SRC' is not a folder; name a checkpoint folder"


# ---- draft ----

@pytest.mark.parametrize("change, text", [
    (lambda c: c.update(sliding_window=4096), "sliding_window is 4096; the draft of 'toy' needs 64"),
    (lambda c: c.pop("is_causal"), "is_causal is missing; the draft of 'toy' needs 0"),
    (lambda c: c.update(is_causal=True), "is_causal is 1; the draft of 'toy' needs 0"),
    (lambda c: c["dflash_config"].update(block_size=16), "block_size is 16; the draft of 'toy' needs 8"),
    (lambda c: c["dflash_config"].update(selector_rank=256), "selector_rank is 256; the draft of 'toy' needs 64"),
    (lambda c: c["dflash_config"].update(target_layer_ids=[1, 4, 7]),
     "target_layer_ids[2] is 7; the draft of 'toy' needs 6"),
    (lambda c: c["dflash_config"].update(target_layer_ids=[1, 4]),
     "target_layer_ids has 2 entries; the draft of 'toy' needs 3"),
    (lambda c: c.update(hidden_act="gelu"), "hidden_act is 'gelu'; it must be 'silu'"),
    (lambda c: c["layer_types"].__setitem__(1, "full_attention"),
     "layer_types[1] is 'full_attention'; it must be 'sliding_attention'"),
    (lambda c: c.update(architectures=["DFlashDraftModel"]),
     "architecture 'DFlashDraftModel' is not supported; 'DFlash2DraftModel' is"),
    (lambda c: c["dflash_config"].update(final_logit_softcapping=20.0),
     "final_logit_softcapping is set; this build has none"),
])
def test_draft_config(source, checkpoints, tmp_path, refuse, change, text):
    shutil.copytree(checkpoints("toy", "draft"), tmp_path / "draft")
    edit_config(tmp_path / "draft", change)
    assert refuse(source, "--draft", tmp_path / "draft") == f"draft config.json: {text}"


def test_draft_for_a_model_without_one(checkpoints, refuse):
    assert refuse(checkpoints("toy-ratio3"), "--draft", checkpoints("toy", "draft")) == \
        "geometry 'toy-ratio3' defines no draft model"


def test_draft_tensor_missing(source, checkpoints, tmp_path, refuse):
    shutil.copytree(checkpoints("toy", "draft"), tmp_path / "draft")
    edit_tensors(tmp_path / "draft", lambda h: h.pop("fc.weight") and None)
    assert refuse(source, "--draft", tmp_path / "draft") == "draft source has no tensor 'fc.weight'"


# ---- splash-packed ----

@pytest.fixture()
def packed(checkpoints, tmp_path):
    shutil.copytree(checkpoints("toy", "splash-packed"), tmp_path / "source")
    return tmp_path / "source"


def resign_packed(folder):
    import hashlib
    manifest = json.loads((folder / "manifest.json").read_text())
    for a in manifest["artifacts"]:
        if (folder / a["path"]).is_file():
            data = (folder / a["path"]).read_bytes()
            a["size"], a["sha256"] = len(data), hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def edit_packed(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_packed_damage(packed, refuse):
    tamper.poke(packed / "target/layer-2.bin", 40000, b"\xff\xff\xff")
    assert refuse(packed).startswith("'target/layer-2.bin' has SHA-256 ")


@pytest.mark.parametrize("offset, data, text", [
    (0, b"MDFL0005", "'target/layer-2.bin' does not begin with the magic MDFL0006"),
    (8, b"\3", "'target/layer-2.bin' has layer field 3 but must have 2"),
    (12, b"\1", "'target/layer-2.bin' has type field 1 but must have 0"),
])
def test_packed_start(packed, refuse, offset, data, text):
    tamper.poke(packed / "target/layer-2.bin", offset, data)
    resign_packed(packed)
    assert refuse(packed) == text


def test_packed_sizes(packed, refuse):
    size = (packed / "target/layer-2.bin").stat().st_size
    os.truncate(packed / "target/layer-2.bin", size + 16384)
    assert refuse(packed) == f"'target/layer-2.bin' has {size + 16384} bytes but its manifest says {size}"
    resign_packed(packed)
    assert refuse(packed) == f"'target/layer-2.bin' has {size + 16384} bytes but its sections need {size}"
    os.truncate(packed / "target/layer-2.bin", size - 32768)
    resign_packed(packed)
    assert refuse(packed).startswith("'target/layer-2.bin': section 'mlp down' (27648 bytes at ")


@pytest.mark.parametrize("change, text", [
    (lambda m: m.update(schema_version=5),
     "splash-packed manifest.json: schema_version 5 is not supported; 'splash-packed-q4' has 3"),
    (lambda m: m["format"].update(name="gguf"),
     "splash-packed manifest.json: format 'gguf' is neither 'splash-packed-q4' nor 'splash-packed-q4-moe'"),
    (lambda m: m["format"].update(q4_group_size=32),
     "splash-packed manifest.json format: q4_group_size is 32 in the package but must be 64"),
    (lambda m: m["format"].update(target_layer_magic="MDFL0007"),
     "splash-packed manifest.json format: target_layer_magic is 'MDFL0007' but must be 'MDFL0006'"),
    (lambda m: m["execution_geometry"].update(draft_query_rows=4),
     "splash-packed manifest.json execution_geometry: draft_query_rows is 4 in the package but must be 8"),
    (lambda m: m["artifacts"].pop(0), "splash-packed manifest.json does not list 'target/layer-0.bin'"),
    (lambda m: m["artifacts"].append(m["artifacts"][0]),
     "splash-packed manifest.json lists artifact 'target/layer-0.bin' twice"),
    (lambda m: m["artifacts"][0].update(path="../x"),
     "splash-packed manifest.json artifact path '../x' is not a plain relative path"),
    (lambda m: m["artifacts"][0].update(path="target"),
     "splash-packed manifest.json: artifact 'target' is also the folder of another"),
    (lambda m: m["artifacts"][0].update(size=5),
     "splash-packed manifest.json artifact 'target/layer-0.bin' has size 5, not a multiple of 16384"),
])
def test_packed_manifest(packed, refuse, change, text):
    edit_packed(packed, change)
    assert refuse(packed) == text


def test_package_as_source(driver, checkpoints, tmp_path):
    assert driver.pack(checkpoints("toy"), tmp_path / "p") is None
    assert driver.pack(tmp_path / "p", tmp_path / "q") == \
        "the source is already a package of this engine; there is nothing to pack"


# ---- packages ----

@pytest.fixture()
def package(driver, checkpoints, tmp_path):
    assert driver.pack(checkpoints("toy"), tmp_path / "p", "--draft", checkpoints("toy", "draft")) is None
    return tmp_path / "p"


def tensor(manifest, name):
    return next(t for t in manifest["tensors"] if t["name"] == name)


GATE = "target.layers.1.gate_up"


@pytest.mark.parametrize("change, text", [
    (lambda m: m["format"].update(major=2),
     "format version 2 is not supported (this build reads version 1); pack the model again"),
    (lambda m: m["format"].update(name="gguf"), "format 'gguf' is not 'r16-pack'; pack this model first"),
    (lambda m: m["format"].update(byte_order="big"), "byte order 'big' is not 'little'"),
    (lambda m: m["requires"].append("sparse"), "required feature 'sparse' is not known to this build; update it"),
    (lambda m: m["model"].update(geometry="toy-x"),
     "geometry 'toy-x' is not known to this build; update it or use another package"),
    (lambda m: m["geometry"].update(hidden=256),
     "geometry field 'hidden' is 256 in the package but 128 in 'toy' of this build"),
    (lambda m: m["geometry"].update(rms_eps=1e-5),
     "geometry field 'rms_eps' is 1e-05 in the package but 1e-06 in 'toy' of this build"),
    (lambda m: m["geometry"]["draft"].update(selector_rank=32),
     "geometry field 'draft.selector_rank' is 32 in the package but 64 in 'toy' of this build"),
    (lambda m: m["geometry"]["stop_tokens"].__setitem__(1, 3),
     "geometry field 'stop_tokens[1]' is 3 in the package but 482 in 'toy' of this build"),
    (lambda m: m["geometry"].pop("vocab"), "geometry field 'vocab' is missing or not a number"),
    (lambda m: tensor(m, GATE).update(name="x"), f"tensor '{GATE}' is missing"),
    (lambda m: tensor(m, GATE).update(encoding="q4_K"),
     f"tensor '{GATE}' has encoding 'q4_K'; this build reads 'q4g64r16'"),
    (lambda m: tensor(m, GATE).update(order="plain"), f"tensor '{GATE}' has order 'plain'; this build reads 'gate_up_pairs'"),
    (lambda m: tensor(m, GATE).update(shape=[128, 384]), f"tensor '{GATE}' has shape 128x384; this build needs 384x128"),
    (lambda m: tensor(m, GATE).update(bytes=64), f"tensor '{GATE}' has 64 bytes; its shape and encoding need 27648"),
    (lambda m: tensor(m, GATE).update(file="draft.bin"), None),
    (lambda m: tensor(m, GATE).update(file="other.bin"),
     f"tensor '{GATE}' is in 'other.bin', which 'files' does not list"),
    (lambda m: tensor(m, GATE).update(offset=(1 << 62) + 4096), "fits"),
    (lambda m: tensor(m, GATE).update(offset=tensor(m, GATE)["offset"] + 4096), "overlap"),
    (lambda m: tensor(m, GATE).update(offset=0), "fits"),
    (lambda m: m["encodings"]["q4g64r16"].update(hi_nibble_offset=1),
     "encoding 'q4g64r16' differs from this build's in 'hi_nibble_offset'"),
    (lambda m: m["encodings"]["q4g64r16"].update(zigzag=1),
     "encoding 'q4g64r16' has fields that this build does not know"),
    (lambda m: m["encodings"].pop("q4g64r16"), "encoding 'q4g64r16' is used but not described under 'encodings'"),
    (lambda m: m["files"][0].update(path="../../etc/passwd"),
     "file path '../../etc/passwd' is not a plain file name"),
])
def test_package_manifest(driver, package, change, text):
    tamper.edit_manifest(package, change)
    error = driver.open(package)
    assert error is not None, "opened"
    if text == "fits":
        assert f"tensor '{GATE}' (offset " in error and "does not fit in 'target.bin'" in error, error
    elif text == "overlap":
        assert error.endswith("overlap in 'target.bin'"), error
    elif text is not None:
        assert error == f"manifest.json: {text}"


def test_misaligned_tensor(driver, package):
    name = "target.layers.1.gdn_decay"
    tamper.edit_manifest(package, lambda m: tensor(m, name).update(offset=tensor(m, name)["offset"] + 4))
    offset = tensor(json.loads((package / "manifest.json").read_text()), name)["offset"]
    assert driver.open(package) == f"manifest.json: tensor '{name}' at offset {offset} is not aligned to 64"


def test_edited_manifest(driver, package):
    tamper.edit_manifest(package, lambda m: tensor(m, "target.layers.0.input_norm").update(offset=64 * 3), resign=False)
    assert driver.open(package) is not None
    tamper.edit_manifest(package, lambda m: m["files"][0].update(sha256="0" * 64), resign=False)
    assert driver.open(package) is not None


def test_identity(driver, package):
    tamper.edit_manifest(package, lambda m: m.update(identity="0" * 64), resign=False)
    assert driver.open(package) == \
        "manifest.json: identity does not match its contents; the manifest was edited or damaged"


def test_swapped_weights(driver, package, checkpoints, tmp_path):
    """Same shape, other weights: caught by every open, before a byte is used."""
    assert driver.pack(checkpoints("toy", seed=2), tmp_path / "other") is None
    shutil.copy(tmp_path / "other/target.bin", package / "target.bin")
    assert driver.open(package) == (f"'{package}/target.bin' belongs to another package: its header does not carry this "
                                    "manifest's identity")
    shutil.copy(package / "draft.bin", package / "target.bin")
    assert "target.bin' has " in driver.open(package)


def test_damaged_weights(driver, package):
    tamper.poke(package / "target.bin", 300_000, b"\x55\xaa")
    assert driver.open(package) is None                      # the quick check does not read everything
    assert driver.verify(package).startswith("'target.bin' has SHA-256 ")
    tamper.poke(package / "target.bin", 0, b"GGUF")
    assert driver.open(package) == f"'{package}/target.bin' does not start with the header of a version 1 weight file"


def test_sizes_and_missing_files(driver, package):
    size = (package / "target.bin").stat().st_size
    os.truncate(package / "target.bin", size - 1)
    assert driver.open(package) == (f"'{package}/target.bin' has {size - 1} bytes but the manifest says {size}; "
                                    "pack or download the model again")
    os.remove(package / "target.bin")
    assert driver.open(package) == f"cannot open '{package}/target.bin': No such file or directory"
    os.remove(package / "manifest.json")
    assert driver.open(package) == f"'{package}' is not a package: it has no manifest.json"


def test_scale_that_is_not_finite(driver, package):
    manifest = json.loads((package / "manifest.json").read_text())
    tamper.poke(package / "target.bin", tensor(manifest, GATE)["offset"] + 576, b"\xc0\x7f")
    tamper.sign(package)
    assert driver.open(package) is None
    assert driver.verify(package) == f"tensor '{GATE}' holds a scale that is not finite in tile 1; pack the model again"


def test_small_value_that_is_not_finite(driver, package):
    manifest = json.loads((package / "manifest.json").read_text())
    offset = tensor(manifest, "target.layers.2.gdn_decay")["offset"]
    tamper.poke(package / "target.bin", offset + 4, b"\0\0\x80\x7f")
    tamper.sign(package)
    assert driver.open(package) == \
        "tensor 'target.layers.2.gdn_decay' holds a value that is not finite at index 1; pack the model again"


def test_unknown_optional_fields_are_ignored(driver, package):
    tamper.edit_manifest(package, lambda m: (m.update(colour="red"), m["model"].update(licence="x"), m["format"].update(minor=7)))
    assert driver.verify(package) is None
