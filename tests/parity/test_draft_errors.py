# SPDX-License-Identifier: Apache-2.0
"""Drafts that do not belong to their target are refused by the packer, and a package whose draft was exchanged by
the loader; the message names the field. Other fields of a draft's config: tests/pack/test_errors.py."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

import checkpoint
import drafts


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    checkpoint.write(folder / "checkpoint", "toy", seed=11)
    for shape in ("toy", "nano"):
        drafts.write(folder / shape, shape)
    return folder


@pytest.fixture
def refuse(drafter, sources, tmp_path):
    """refuse(change): the packer's complaint about the toy draft after change(folder)."""

    def get(change, draft="toy"):
        shutil.copytree(sources / draft, tmp_path / "draft")
        change(tmp_path / "draft")
        complaint = drafter.call("pack", sources / "checkpoint", tmp_path / "draft", tmp_path / "package")
        assert complaint is not None, "it was packed"
        assert not (tmp_path / "package").exists()
        return complaint

    return get


def config(change):
    def edit(folder):
        path = folder / "config.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return edit


def tensors(change):
    def edit(folder):
        path = folder / "model.safetensors"
        content = load_file(path)
        change(content)
        save_file({k: v.contiguous() for k, v in content.items()}, path, metadata={"format": "pt"})

    return edit


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda c: c.update(hidden_size=256), "hidden_size is 256; the draft of 'toy' needs 128"),
        (lambda c: c.update(vocab_size=8192), "vocab_size is 8192; the draft of 'toy' needs 512"),
        (lambda c: c.update(num_target_layers=64), "num_target_layers is 64; the draft of 'toy' needs 8"),
        (lambda c: c["dflash_config"].update(mask_token_id=7), "mask_token_id is 7; the draft of 'toy' needs 506"),
        (
            lambda c: c["dflash_config"].update(target_layer_ids=[1, 5, 6]),
            "target_layer_ids[1] is 5; the draft of 'toy' needs 4",
        ),
        (
            lambda c: c["dflash_config"].pop("target_layer_ids"),
            "target_layer_ids has 0 entries; the draft of 'toy' needs 3",
        ),
    ],
)
def test_config(refuse, change, text):
    assert refuse(config(change)) == f"draft config.json: {text}"


def test_made_for_another_target(refuse):
    """nano's draft beside the toy's target, untouched: the first number that differs is named."""
    assert refuse(lambda folder: None, draft="nano") == (
        "draft config.json: hidden_size is 256; the draft of 'toy' needs 128"
    )


@pytest.mark.parametrize("which", ["predecessor", "successor"])
def test_codebook_missing(refuse, which):
    name = f"candidate_selector.{which}_codebook"
    assert refuse(tensors(lambda t: t.pop(name))) == f"draft source has no tensor '{name}'"


@pytest.mark.parametrize(
    "name, cut",
    [
        ("candidate_selector.successor_codebook", lambda v: v[:-1]),  # another vocabulary
        ("candidate_selector.predecessor_codebook", lambda v: v[:, :-1]),  # another rank
        ("fc.weight", lambda v: v[:, :256]),  # fewer taps
        ("layers.1.attention_conv.base_kernel", lambda v: v[:, :1]),  # fewer taps of the convolution
        ("layers.0.self_attn.q_norm.weight", lambda v: v[:-1]),
    ],
)
def test_tensor_shapes(refuse, name, cut):
    """A config that fits does not help weights that do not."""
    complaint = refuse(tensors(lambda t: t.update({name: cut(t[name])})))
    assert f"'{name}'" in complaint and "shape" in complaint


def test_tensor_of_another_layer(refuse):
    name = "layers.2.fc.weight"
    complaint = refuse(tensors(lambda t: t.update({name: t["fc.weight"].clone()})))
    assert f"'{name}'" in complaint and "'toy'" in complaint


@pytest.mark.parametrize(
    "field, value, text",
    [
        ("hidden", 64, "geometry field 'draft.hidden' is 64 in the package but 128 in 'toy' of this build"),
        ("mask_token", 3, "geometry field 'draft.mask_token' is 3 in the package but 506 in 'toy' of this build"),
        ("window_tokens", 32, "geometry field 'draft.window_tokens' is 32 in the package but 64 in 'toy' of this build"),
    ],
)
def test_loader(drafter, drafted, tmp_path, field, value, text):
    """A package that was made elsewhere for another draft."""
    model = drafted("toy")
    shutil.copytree(model.package, tmp_path / "package")
    path = tmp_path / "package" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["geometry"]["draft"][field] = value
    path.write_text(json.dumps(manifest))
    script = tmp_path / "script"
    script.write_bytes(drafts.Script([1, 2, 3], [(4, 8, 1)]).pack())
    assert text in drafter.call("run", tmp_path / "package", "oracle", 8, 1, script)


def test_loader_without_the_draft(drafter, drafted, tmp_path):
    """draft.bin cut short or gone: named, and nothing runs."""
    model = drafted("toy")
    script = tmp_path / "script"
    script.write_bytes(drafts.Script([1, 2, 3], [(4, 8, 1)]).pack())
    shutil.copytree(model.package, tmp_path / "package")
    path = tmp_path / "package" / "draft.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4096])
    assert "draft.bin" in drafter.call("run", tmp_path / "package", "oracle", 8, 1, script)
    path.unlink()
    assert "draft.bin" in drafter.call("run", tmp_path / "package", "oracle", 8, 1, script)
