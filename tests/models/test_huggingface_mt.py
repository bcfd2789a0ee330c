"""Marian and BART, from a folder: they translate as their library has them translate, and go the way of all networks."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_files import write_pairs
from tiny_translators import KINDS, TEXTS, make_translator

import sparsefront as sf
from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.models.huggingface_mt import HuggingFaceMT, StoredTokenizer
from sparsefront.tasks.decoding import DecoderStep, Decoding, SourceEncoder, WholeTranslation, translate

INFO = DataInfo("translation", num_classes=0, sequence_length=20)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make_translator(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


def sentences(tokenizer: StoredTokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    rows = tokenizer.encode(TEXTS, "source")
    longest = max(map(len, rows))
    source = torch.tensor([row + [tokenizer.pad] * (longest - len(row)) for row in rows])
    return source, source != tokenizer.pad


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_network_is_the_librarys(folders: dict[str, Path], kind: str) -> None:
    import transformers

    model = HuggingFaceMT(path=str(folders[kind]))
    model.check()
    net, own = model.build(INFO), getattr(transformers, KINDS[kind]).from_pretrained(folders[kind]).eval()
    assert net.training and [*net.state_dict()] == [*own.state_dict()] == [*model.skeleton(INFO).state_dict()]
    layers = model.prunable(net)
    assert len(layers) == 2 * 6 + 2 * 10 and {name.split(".")[1] for name in layers} == {"encoder", "decoder"}
    net.eval()
    source, mask = sentences(model.tokenizer())
    target = torch.randint(4, 290, (4, 7))
    target[:, 0] = net.start
    whole = net(source, mask, target)
    theirs = own(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
    torch.testing.assert_close(whole, theirs, atol=1e-5, rtol=1e-5)
    state = net.encode(source, mask)
    order = torch.tensor([2, 0, 0, 3, 1])
    state, whole, target = net.reorder(state, order), whole[order], target[order]
    for place in range(7):
        given, after = net.step(target[:, place], state)
        torch.testing.assert_close(given, whole[:, place], atol=1e-5, rtol=1e-5)
        assert torch.equal(net.step(target[:, place], state)[0], given), "a state is not changed by a step"
        order = torch.tensor([4, 4, 0, 1, 2])
        state, whole, target = net.reorder(after, order), whole[order], target[order]
    found = translate(net, source, mask, Decoding(1, 1.0, 12))
    settings = {"num_beams": 1, "do_sample": False, "max_new_tokens": 12, "bad_words_ids": [[net.pad]]}
    theirs = own.generate(input_ids=source, attention_mask=mask.long(), forced_eos_token_id=net.end, **settings)
    assert [*map(len, found)] and torch.equal(found, theirs[:, 1 : 1 + found.shape[1]])
    assert model.tokenizer().decode([row[mask].tolist() for row, mask in zip(source, mask)]) == [f" {t}" for t in TEXTS]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_translations_with_kernels(folders: dict[str, Path], kind: str) -> None:
    model = HuggingFaceMT(path=str(folders[kind]))
    net = model.build(INFO).eval()
    source, mask = sentences(model.tokenizer())
    inputs = {"source": source, "source_mask": mask, "target": source.flip(1)}
    masks = sf.prune(net, "tile_wise", 0.5, granularity=16, layers=model.prunable(net), tell=len)
    masked = copy.deepcopy(net)
    report = sf.swap(net, masks, inputs, kernel="sparse", tell=len)
    assert report.sparse_layer_share == 1
    how = Decoding(3, 1.0, 12)
    assert torch.equal(*(translate(one, source, mask, how) for one in (masked, net)))
    given = source.repeat_interleave(3, 0)
    for part in (SourceEncoder, lambda one: DecoderStep(one, source, mask, given[:, :4])):
        called = {"source": source, "source_mask": mask} if part is SourceEncoder else {"tokens": given[:, 4]}
        for one, other in zip(*(torch.utils._pytree.tree_leaves(part(each)(**called)) for each in (masked, net))):
            torch.testing.assert_close(one.float(), other.float(), atol=1e-4, rtol=1e-4)
    _, scores = WholeTranslation(net, how)(source, mask)
    assert scores.isfinite().all()


def test_a_run(run, folders: dict[str, Path], tmp_path: Path) -> None:
    """Trained on, pruned, recovered, exported, measured, and opened by its own library; BART is run in tests/verify."""
    import transformers

    row = run(
        "model=huggingface_mt",
        f"model.path={folders['marian']}",
        "dataset=multi30k",
        f"dataset.path={write_pairs(tmp_path / 'pairs', val=8)}",
        "dataset.max_length=64",
        "recovery=finetune",
        "granularity=16",
        "sparsity=0.5",
        "trainer=cpu",
        "measure.device=cpu",
        "measure.evaluate_limit=4",
        "measure.batch_size=4",
        "measure.sequence_length=8",
        "measure.parts=[encoder,decoder_step,translation]",
    )
    assert row.quality.metric_name == "bleu" and row.quality.sparse == pytest.approx(row.quality.masked, abs=1e-6)
    assert row.sparsity.sparsity_achieved == pytest.approx(0.5, abs=0.12)
    assert all(part["latency_sparse_ms"] > 0 for part in row.speed.parts) and len(row.speed.parts) == 3
    (exported,) = {
        file.parent for file in tmp_path.rglob("model.safetensors") if (file.parent / "config.json").exists()
    }
    again = transformers.MarianMTModel.from_pretrained(exported)
    assert again.config.decoder_start_token_id == 1 and transformers.AutoTokenizer.from_pretrained(exported)


def test_what_cannot_work(folders: dict[str, Path], tmp_path: Path) -> None:
    def other(name: str, *, without: str = "", **config: Any) -> HuggingFaceMT:
        folder = Path(shutil.copytree(folders["bart"], tmp_path / name))
        (folder / without).unlink() if without else None
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | config))
        return HuggingFaceMT(path=str(folder))

    cases = [
        (HuggingFaceMT(), "path=None: "),
        (HuggingFaceMT(path="/nowhere"), "path=/nowhere: does not exist"),
        (other("untold", without="tokenizer.json"), "path=.*untold: has no tokenizer.json or vocab.json"),
        (other("encoder", architectures=["BartModel"]), "holds a BartModel, which does not translate: take a MarianMT"),
        (other("t5", architectures=["T5ForConditionalGeneration"], model_type="t5"), "holds a T5ForConditionalGener"),
        (other("short", max_position_embeddings=16), "has 16 positions, and .* dataset.max_length=20 tokens: give at"),
        (other("start", decoder_start_token_id=None), "its config.json names no decoder_start_token_id"),
        (other("wide", d_model=64), "path=.*wide: "),
    ]
    for model, message in cases:
        with pytest.raises(InvalidSetting, match=message) as caught:
            model.check()
            model.longest_sequence(INFO)
            model.build(INFO)
        assert "\n" not in str(caught.value)
