"""What people may import, written down: a change here is a change for them."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import qkv

PUBLIC = {
    "qkv": "attend embed look pronounce weights",
    "qkv.attention": "Additive Attention Case Elu FeatureMap KeyValues Linear Memory Result Scored Softmax State "
    "Taylor attend build check kinds parse register taylor_features weights",
    "qkv.positions": "Alibi Learned Positions Rope Shaw Sinusoidal Sizes T5 refuse register schemes",
    "qkv.layers": "Context DecoderBlock Dense EncoderBlock FeedForward Heads HeadsState MultiHead NormAfter NormBefore "
    "Packing RecurrentCell ScaledBranch ShortConvolution pack_documents",
    "qkv.cost": "CONVENTION Cost Input Measurement Operation Quantity Report Shape Span Tick UncountedError "
    "causal_pairs convolution count_multiplications crossing evaluate interpolate learned linear measure of recurrent "
    "verify write write_latex",
    "qkv.data": "Analogy Archive BadLine Buckets Documents Labeled Neighbor NoisySine Pair Pairs Points Ragged "
    "Recall Shuffled TokenFile TokenRows Tokenizer Vectors Vocabulary Windows WordCounts WordPair WordWindows "
    "analogies cmudict in_standard_test member_of mnist pad paragraphs_of part_of read_idx read_npz read_pairs "
    "read_pictures read_points read_text read_vectors sentences shard split_words write_vectors ws353 xor",
    "qkv.decode": "Decodable Hypothesis Limits Node SearchTree State beam beam_with_trees drawing greedy likeliest "
    "sample stream",
    "qkv.metrics": "BiasVariance Draw ErrorRates Perplexity PrecisionRecall Separation accuracy average_precision "
    "bias_variance closest confusion_matrix cosine count_words damerau_levenshtein edit_distance error_rates jaccard "
    "precision_recall ranked_hits separating_line spearman",
    "qkv.explain": "Alignment BothSearches Branch Call Copying Implied LayerGradient Look OrderError Site Summary "
    "TokenSteps alignment compare_kinds copying gradient_by_depth gradient_norms jacobian_norms next_tokens observe "
    "score_whole search_tree sites summarize token_steps watch",
    "qkv.draw": "Answer Axis Bar Branch Example Panel Picture Report Series alignment_panels bars curves heatmaps "
    "rectangles report smooth thin tree",
    "qkv.interop": "load_bert load_gpt2 minilm save_bert save_gpt2 transformers",
    "qkv.models": "Convolutional ConvolutionalConfig Decoder DecoderConfig DecoderState Encoder EncoderConfig "
    "EncoderDecoder EncoderDecoderConfig EncoderDecoderState Ensemble EnsembleConfig EnsembleState Family Network "
    "NetworkConfig Perceptron PerceptronConfig Polynomial Recurrent RecurrentConfig RecurrentState WordVectors "
    "WordVectorsConfig families family logistic_regression mean_of_tokens softmax_regression",
    "qkv.problems": "AtLeast AtMost Between Markov Near NextToken Problem Solution draw fit meets problem problems",
    "qkv.pronunciation": "Answer BadLine Dictionary Figures Network Pronouncer Pronunciation Source cmu_dictionary "
    "from_ipa measure pack pronounce read_dictionary strip_stress to_ipa write_lexicon",
    "qkv.tasks": "Agreement ClassJob Completed Config Digits Filler Job MaskedJob Outline Pairs Preset Pronounce "
    "Reader RecallJob Search StringJob Strings TextJob Words Xor agreement answer build completed configure embed jobs "
    "preset read_config register restore write",
    "qkv.web": "View look",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    text = Path(import_module(module).__file__).read_text()
    exported = {line.rsplit(" as ", 1)[1] for line in text.splitlines() if " import " in line and " as " in line}
    assert exported == set(PUBLIC[module].split())


def test_every_mechanism_file_is_in_the_table_of_contents():
    """A file with a registered kind that nobody imports would silently not be there."""
    for package in ("attention", "positions"):
        folder = Path(qkv.__file__).parent / package
        contents = (folder / "__init__.py").read_text()
        registered = [path.stem for path in folder.glob("*.py") if "\n@register(" in path.read_text()]
        assert len(registered) >= 5
        assert [name for name in registered if f"from .{name} import" not in contents] == []


def test_import_is_lazy():
    code = "import sys, qkv; assert 'torch' not in sys.modules; qkv.attend; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'qkv' has no attribute 'atend'"):
        qkv.atend  # noqa: B018


def test_version_is_that_of_the_package():
    assert qkv.__version__ == version("qkv")
