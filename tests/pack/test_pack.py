# SPDX-License-Identifier: Apache-2.0
"""What the packer writes, against independent readers: the package by package_reader, the sources by
the safetensors package or by hand, the quantiser by reference.py. All comparisons are bit for bit."""
import json
import pathlib

import numpy as np
import pytest
from safetensors import safe_open

from geometries import GEOMETRIES
from package_reader import Package, bf16_to_f32
from reference import from_bf16, quantise, to_bf16

SMALL = ["toy", "toy-ratio3", "toy-even", "toy-moe"]


def source_tensors(folder):
    """{name: raw array} by our own reading of the files, odd data offsets included."""
    out = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, e in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + n + x for x in e["data_offsets"])
            kind = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "U32": "<u4"}[e["dtype"]]
            out[name] = (e["dtype"], np.frombuffer(data[begin:end], kind).reshape(e["shape"]))
    return out


def as_float(dtype, raw):
    return bf16_to_f32(raw) if dtype == "BF16" else raw.astype(np.float32)


def dequantised(values, bits):
    codes, scales, biases = quantise(values, bits)
    wide = [np.repeat(from_bf16(x), 64, axis=-1) for x in (scales, biases)]
    return wide[0] * codes.astype(np.float32) + wide[1]


def expected_from_values(name, value):
    """What the package must hold for a published tensor, as published_state gives it back."""
    if name.endswith(("layernorm.weight", ".norm.weight", "q_norm.weight", "k_norm.weight")):
        if "linear_attn" in name:
            return value
        return (np.float32(1) + value) - np.float32(1)
    if name.endswith("A_log"):
        return np.log(-(-np.exp(value.astype(np.float64))).astype(np.float32))
    if value.ndim == 1 or "conv1d" in name:
        return value
    router = name.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))
    return dequantised(value, 8 if router else 4)


def same(a, b, name):
    assert a.shape == b.shape, (name, a.shape, b.shape)
    if name.endswith("A_log"):      # log of exp: compared one step before, see test_decay
        assert np.allclose(a, b, rtol=1e-6, atol=1e-6), name
    else:
        assert a.astype(np.float32).tobytes() == b.astype(np.float32).tobytes(), name


def check_values(package, source):
    state = package.published_state()
    assert set(state) == set(source), set(state) ^ set(source)
    for name, (dtype, raw) in source.items():
        same(state[name], expected_from_values(name, as_float(dtype, raw)), name)


@pytest.mark.parametrize("geometry", SMALL)
def test_published_bf16(driver, checkpoints, tmp_path, geometry):
    source = checkpoints(geometry)
    assert driver.pack(source, tmp_path / "p") is None
    assert driver.verify(tmp_path / "p") is None
    check_values(Package(str(tmp_path / "p"), check_hashes=True), source_tensors(source))


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_published_in_other_types(driver, checkpoints, tmp_path, dtype):
    source = checkpoints("toy", dtype=dtype)
    assert driver.pack(source, tmp_path / "p") is None
    check_values(Package(str(tmp_path / "p")), source_tensors(source))


def test_shards_and_text_only_names_give_the_same_weights(driver, checkpoints, tmp_path):
    assert driver.pack(checkpoints("toy"), tmp_path / "one") is None
    assert driver.pack(checkpoints("toy", shards=5), tmp_path / "five") is None
    assert driver.pack(checkpoints("toy", text_only=True), tmp_path / "text") is None
    assert driver.pack(checkpoints("toy"), tmp_path / "threads", "--threads", 7) is None
    one = (tmp_path / "one/target.bin").read_bytes()
    for other in ("five", "text", "threads"):
        assert (tmp_path / other / "target.bin").read_bytes() == one, other


def test_source_is_what_safetensors_reads(checkpoints):
    """Keeps the generator honest: the reference implementation accepts its files."""
    folder = checkpoints("toy")
    ours = source_tensors(folder)
    with safe_open(folder / "model.safetensors", "np") as f:
        assert set(f.keys()) == set(ours)


def test_decay(driver, checkpoints, tmp_path):
    source = source_tensors(checkpoints("toy"))
    assert driver.pack(checkpoints("toy"), tmp_path / "p") is None
    package = Package(str(tmp_path / "p"))
    for layer in (0, 1, 2, 4, 5, 6):
        a_log = as_float(*source[f"model.language_model.layers.{layer}.linear_attn.A_log"])
        want = (-np.exp(a_log.astype(np.float64))).astype(np.float32)
        assert package.dequantise(f"target.layers.{layer}.gdn_decay").reshape(-1).tobytes() == want.tobytes()


def mlx_dequantised(source, stem, bits):
    words = np.ascontiguousarray(source[stem + ".weight"][1])
    per_word = 32 // bits
    codes = np.stack([(words >> (bits * i)) & (2 ** bits - 1) for i in range(per_word)], -1)
    codes = codes.reshape(words.shape[:-1] + (-1,)).astype(np.float32)
    scale, bias = (np.repeat(bf16_to_f32(source[stem + s][1]), 64, axis=-1) for s in (".scales", ".biases"))
    return scale * codes + bias


@pytest.mark.parametrize("geometry", SMALL)
def test_mlx_import_is_lossless(driver, checkpoints, tmp_path, geometry):
    folder = checkpoints(geometry, "mlx")
    first = next(pathlib.Path(folder).glob("*.safetensors")).read_bytes()[:8]
    assert int.from_bytes(first, "little") % 2 == 1, "the data must start at an odd offset"
    assert driver.pack(folder, tmp_path / "p") is None
    assert driver.verify(tmp_path / "p") is None
    source, state = source_tensors(folder), Package(str(tmp_path / "p")).published_state("language_model.model.")
    state["language_model.lm_head.weight"] = state.pop("lm_head.weight")
    for name, value in state.items():
        stem = name[:-len(".weight")]
        if name.endswith("experts.gate_up_proj"):
            base = name.replace("experts.gate_up_proj", "switch_mlp.")
            want = np.concatenate([mlx_dequantised(source, base + x, 4) for x in ("gate_proj", "up_proj")], axis=1)
        elif name.endswith("experts.down_proj"):
            want = mlx_dequantised(source, name.replace("experts.down_proj", "switch_mlp.down_proj"), 4)
        elif stem + ".scales" in source:
            want = mlx_dequantised(source, stem, 8 if name.endswith(("mlp.gate.weight", "expert_gate.weight")) else 4)
        elif "conv1d" in name:
            want = as_float(*source[name]).reshape(value.shape)
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            want = as_float(*source[name]) - np.float32(1)     # stored already shifted
        else:
            want = as_float(*source[name])
        same(value, want, name)


@pytest.mark.parametrize("geometry", ["toy", "toy-moe", "toy-ratio3"])
def test_splash_packed_equals_mlx(driver, checkpoints, tmp_path, geometry):
    """The same numbers by two containers: the target file must be the same bytes."""
    assert driver.pack(checkpoints(geometry, "mlx"), tmp_path / "mlx") is None
    assert driver.pack(checkpoints(geometry, "splash-packed"), tmp_path / "packed") is None
    assert driver.verify(tmp_path / "packed") is None
    a, b = ((tmp_path / x / "target.bin").read_bytes()[4096:] for x in ("mlx", "packed"))
    assert a == b


@pytest.mark.parametrize("geometry", ["toy", "toy-moe"])
def test_draft(driver, checkpoints, tmp_path, geometry):
    source, draft = checkpoints(geometry), checkpoints(geometry, "draft")
    assert driver.pack(source, tmp_path / "p", "--draft", draft) is None
    assert driver.verify(tmp_path / "p") is None
    state = Package(str(tmp_path / "p"), check_hashes=True).published_draft_state()
    tensors = source_tensors(draft)
    assert set(state) == set(tensors)
    for name, (dtype, raw) in tensors.items():
        value = as_float(dtype, raw)
        quantised = value.ndim == 2 and "codebook" not in name
        same(state[name], dequantised(value, 4) if quantised else value, name)


def test_splash_packed_draft_equals_its_checkpoint(driver, checkpoints, tmp_path):
    assert driver.pack(checkpoints("toy"), tmp_path / "hf", "--draft", checkpoints("toy", "draft")) is None
    assert driver.pack(checkpoints("toy", "splash-packed"), tmp_path / "packed") is None
    a, b = ((tmp_path / x / "draft.bin").read_bytes()[4096:] for x in ("hf", "packed"))
    assert a == b


def test_layer_limit(driver, checkpoints, tmp_path):
    assert driver.pack(checkpoints("toy"), tmp_path / "p", "--layers", 3) is None
    assert "21" in driver.notes[0] or "left out as asked" in " ".join(driver.notes)
    assert driver.pack(checkpoints("toy", layers=3), tmp_path / "q", "--layers", 3) is None
    assert (tmp_path / "p/target.bin").read_bytes() == (tmp_path / "q/target.bin").read_bytes()
    assert driver.open(tmp_path / "p") is None and "layers 3 " in driver.output


def test_equal_inputs_give_equal_packages(driver, checkpoints, tmp_path):
    for name in ("a", "b"):
        assert driver.pack(checkpoints("toy"), tmp_path / name, "--draft", checkpoints("toy", "draft")) is None
    for file in ("manifest.json", "target.bin", "draft.bin"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_geometry_table_equals_the_registry(driver, name):
    driver.run("geometry", name)
    stored, g = json.loads(driver.output)["geometry"], dict(GEOMETRIES[name])
    assert stored.pop("draft", None) == g.pop("draft", None)
    assert stored == g


def test_side_files_and_template_rules(driver, checkpoints, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for path in checkpoints("toy").iterdir():
        (source / path.name).symlink_to(path)
    (source / "tokenizer.json").write_text("{}")
    (source / "generation_config.json").write_text('{"eos_token_id": [482, 480], "temperature": 0.5}')
    for text, rules in (("{{ preserve_thinking }}", "qwen3.6"), ("{{ reasoning_effort }}", "qwen3.8"),
                        ("{{ enable_thinking }}", "qwen3.5"), ("{{ other }}", "qwen3.8")):
        (source / "chat_template.jinja").write_text(text)
        assert driver.pack(source, tmp_path / "p", "--overwrite", "--name", "A model") is None
        assert not driver.notes
        assert driver.open(tmp_path / "p") is None and f"template {rules} " in driver.output, text
        assert "name A model " in driver.output
    assert json.loads((tmp_path / "p/generation_config.json").read_text())["temperature"] == 0.5


def test_to_bf16_of_the_reference():
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, 3.0e38], np.float32)
    assert [hex(b) for b in to_bf16(values)] == ["0x3f80", "0x3f80", "0x3f82", "0x8000", "0x7f62"]
