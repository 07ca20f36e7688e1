# SPDX-License-Identifier: Apache-2.0
"""A second opinion on drafted blocks: llama.cpp's DFlash 2 on the same weights as F32 GGUFs (README.md says where
the two differ by design)."""

import subprocess

import numpy as np
import pytest

import gguf
import llama
from drafts import BLOCK
from test_draft import script_of, text_of

LIMIT = 2e-3  # scores
CLEAR = 2e-3  # the engine's own scores stray by half of this at most
CANDIDATES = 15  # llama.cpp wants K (K + 1) values of a hidden row of 256


@pytest.fixture(scope="session")
def lattices(tmp_path_factory):
    """lattices(model, text, blocks): [block][8][hidden], see llama_draft.cpp."""
    folder = tmp_path_factory.mktemp("llama-draft")
    command = llama.build(folder, "llama_draft.cpp")

    def run(model, text, blocks):
        files = [folder / name for name in ("target.gguf", "draft.gguf", "script", "out")]
        gguf.write(files[0], model.weights, model.config)
        gguf.write_draft(files[1], model.weights, model.draft_weights, model.g, CANDIDATES)
        np.array([len(text), len(blocks), *text, *np.ravel(blocks)], "<u4").tofile(files[2])
        done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return np.fromfile(files[3], "<f4").reshape(len(blocks), BLOCK, -1)

    return run


def test_proposals(drafter, drafted, lattices):
    """Scores against the formulas; paths against the engine's, wherever rounding cannot have decided."""
    model = drafted("nano")
    reference = model.reference
    worst, ours_worst, alike = 0.0, 0.0, 0
    scripts = [script_of(model, n, 8, seed=n) for n in (9, 60)]
    for script, records in zip(scripts, drafter.play(model, scripts)):
        text = text_of(script, records)
        features = reference.features(text)
        blocks = [(int(r["position"]), int(step[0])) for r, step in zip(records, script.steps)]
        for record, rows, (position, anchor) in zip(records, lattices(model, text, blocks), blocks):
            block, slot, path, clear = reference.block(features[:position], anchor), 0, [anchor], True
            for r in range(1, BLOCK):
                ids = rows[r, :CANDIDATES].astype(np.int64)
                scores = rows[r, CANDIDATES:][: CANDIDATES**2].reshape(CANDIDATES, CANDIDATES)[slot]
                want = np.sort(block.logits[r])[::-1][:CANDIDATES]
                assert np.abs(np.sort(block.logits[r][ids])[::-1] - want).max() <= LIMIT, "other candidates"
                edges = reference.edges(path[-1], block.selector[r], ids, block.logits[r][ids])
                worst = max(worst, float(np.abs(edges - scores).max()))
                ours = record["candidates"][r].astype(np.int64)
                ours_edges = reference.edges(path[-1], record["selector"][r], ours, record["scores"][r])
                exact = reference.edges(path[-1], block.selector[r], ours, block.logits[r][ours])
                ours_worst = max(ours_worst, float(np.abs(ours_edges - exact).max()))
                slot = int(scores.argmax())
                path.append(int(ids[slot]))
                second, first = np.sort(ours_edges)[-2:]
                clear = clear and first - second > CLEAR and ours[ours_edges.argmax()] in ids
            if clear:
                assert path[1:] == list(record["tokens"][1:])
                alike += 1
    print(f"nano: edge scores differ by {worst:.1e} at most, the engine's own by {ours_worst:.1e}; "
          f"{alike} of 16 paths clear and the same")
    assert worst <= LIMIT
    assert ours_worst <= CLEAR / 2
    assert alike >= 6
