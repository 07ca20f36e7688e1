# SPDX-License-Identifier: Apache-2.0
"""Writes the stored fuzz corpora of the pack formats: small valid inputs and hand-made hostile ones.

    make_corpora.py PACK_DRIVER      (writes tests/fuzz/corpus/{safetensors,manifest,config,packed})
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import make_checkpoint
from geometries import GEOMETRIES, draft_config, published_config

CORPUS = pathlib.Path(__file__).resolve().parents[1] / "fuzz" / "corpus"


def put(kind, name, data):
    folder = CORPUS / kind
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def safetensors():
    def file(header, data=b"", length=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return (len(text) if length is None else length).to_bytes(8, "little") + text + data

    def one(dtype="BF16", shape=(2, 3), offsets=(0, 12)):
        return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}
    good = {"__metadata__": {"format": "pt"}, "a": one(), "b": one("F32", [2], [12, 20]), "c": one("U8", [], [20, 21])}
    put("safetensors", "good", file(good, b"x" * 21))
    put("safetensors", "padded", file(json.dumps(good).encode() + b"   ", b"x" * 21))
    put("safetensors", "hole", file({"a": one(), "b": one("F32", [2], [100, 108])}, b"x" * 108))
    put("safetensors", "overlap", file({"a": one(), "b": one("F32", [2], [8, 16])}, b"x" * 20))
    put("safetensors", "exabyte_header", file(b"{}", length=1 << 60))
    put("safetensors", "all_ones_header", file(b"{}", length=(1 << 64) - 1))
    put("safetensors", "past_the_end", file({"a": one("F32", [1 << 20], [0, 1 << 22])}))
    put("safetensors", "shape_overflow", file({"a": one("F32", [1 << 40, 1 << 40], [0, 4])}))
    put("safetensors", "wrap_to_zero", file({"a": one("F32", [1 << 32, 1 << 32], [0, 0])}))
    put("safetensors", "negative", file({"a": one("F32", [-1], [0, 4])}))
    put("safetensors", "exponent", file(b'{"a":{"dtype":"F32","shape":[1e3],"data_offsets":[0,4000]}}', b"x" * 4000))
    put("safetensors", "huge_integer", file(b'{"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}}'))
    put("safetensors", "duplicate", file(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":1}', b"x"))
    put("safetensors", "nul_name", file(b'{"a\\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"))
    put("safetensors", "bad_utf8", file(b'{"\xff":{}}'))
    put("safetensors", "deep", file(b'{"a":' + b"[" * 600 + b"]" * 600 + b"}"))
    put("safetensors", "not_an_object", file(b"[1]"))
    put("safetensors", "rank_nine", file({"a": one("U8", [1] * 9, [0, 1])}, b"x"))
    put("safetensors", "four_bits", file({"a": one("F4", [3], [0, 2])}, b"xx"))


def manifest(driver):
    with tempfile.TemporaryDirectory() as work:
        make_checkpoint.make("toy-even", work + "/source", "hf", layers=2)
        subprocess.run([driver, "pack", work + "/source", work + "/p", "--layers", "2"], check=True, stdout=subprocess.DEVNULL)
        good = json.loads(pathlib.Path(work, "p/manifest.json").read_text())

    def changed(name, change):
        m = json.loads(json.dumps(good))
        change(m)
        put("manifest", name, json.dumps(m, separators=(",", ":")))
    changed("good", lambda m: None)
    changed("major", lambda m: m["format"].update(major=2))
    changed("feature", lambda m: m["requires"].append("x"))
    changed("geometry", lambda m: m["geometry"].update(hidden=1 << 40))
    changed("layers", lambda m: m["model"].update(n_layers=0))
    changed("offset_overflow", lambda m: m["tensors"][3].update(offset=(1 << 63) - 1))
    changed("bytes_overflow", lambda m: m["tensors"][3].update(bytes=(1 << 63) - 1))
    changed("overlap", lambda m: m["tensors"][3].update(offset=m["tensors"][2]["offset"]))
    changed("no_name", lambda m: m["tensors"][3].pop("name"))
    changed("entry_is_a_number", lambda m: m["tensors"].__setitem__(3, 7))
    changed("path", lambda m: m["files"][0].update(path="../x"))
    changed("many_files", lambda m: m.update(files=[dict(m["files"][0], path=f"f{i}") for i in range(40)]))
    changed("hash_from", lambda m: m["files"][0].update(hash_from=1 << 62))
    changed("identity", lambda m: m.update(identity="x"))


def config():
    def way(n, value):
        return bytes([n]) + json.dumps(value, separators=(",", ":")).encode()
    toy, moe = published_config(GEOMETRIES["toy"], 8), published_config(GEOMETRIES["toy-moe"], 8)
    put("config", "toy", way(0, toy))
    put("config", "moe", way(0, moe))
    put("config", "few_layers", way(6, published_config(GEOMETRIES["toy"], 2)))
    put("config", "partial", way(1, {"text_config": {"model_type": "qwen3_5_text", "hidden_size": 128, "vocab_size": 512}}))
    put("config", "draft", way(2, draft_config(GEOMETRIES["toy"])))
    put("config", "mlx", way(0, dict(toy, quantization={"group_size": 64, "bits": 4})))
    put("config", "gptq", way(0, dict(toy, quantization_config={"quant_method": "gptq"})))
    put("config", "other", way(0, {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    put("config", "wrong_types", way(0, dict(toy, text_config=dict(toy["text_config"], hidden_size="128", layer_types=5,
                                                                rope_parameters=[1], model_type=["x"]))))
    put("config", "huge_numbers", way(0, dict(toy, text_config=dict(toy["text_config"], num_hidden_layers=1e308, head_dim=-1))))
    put("config", "text_is_a_list", way(0, {"architectures": ["Qwen3_5ForCausalLM"], "text_config": []}))
    put("config", "empty", b"\0{}")


def packed():
    start = b"MDFL0006" + (3).to_bytes(4, "little") + (1).to_bytes(4, "little")
    for geometry in ("toy", "toy-moe"):
        folder = make_checkpoint.PackedFolder("", GEOMETRIES[geometry], 8, 1)
        folder.artifacts = [{"path": f"target/layer-{n}.bin", "size": 16384, "sha256": "0" * 64} for n in range(3)]
        good = folder.manifest(geometry == "toy-moe")

        def changed(name, change):
            m = json.loads(json.dumps(good))
            change(m)
            put("packed", f"{geometry}_{name}", start + json.dumps(m, separators=(",", ":")).encode())
        changed("good", lambda m: None)
        changed("size", lambda m: m["artifacts"][0].update(size=(1 << 63) - 1))
        changed("path", lambda m: m["artifacts"][0].update(path="a/../../b"))
        changed("folder", lambda m: m["artifacts"][0].update(path="target"))
        changed("digest", lambda m: m["artifacts"][0].update(sha256="A" * 64))
        changed("schema", lambda m: m.update(schema_version=9))
    put("packed", "magic", b"MDFL0005" + start[8:] + b"{}")


if __name__ == "__main__":
    safetensors()
    manifest(sys.argv[1])
    config()
    packed()
