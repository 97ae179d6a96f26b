"""Golden values for RoPE scaling: what Hugging Face transformers computes for the same settings.

usage: python make_rope_scaling.py [FILE]

Writes rope_scaling.json, by default beside this script, with one case a line. Each case holds the
inverse frequencies (radians a position, one for each rotated pair) and the attention factor (which
multiplies both cosine and sine) that transformers gives for one set of settings.

transformers converts to float32 inside, whatever the default type is, so the frequencies are only
accurate to float32: a few parts in ten million. They are written exactly as transformers gives
them. The attention factor is a Python float and accurate to float64.

"length" matters to dynamic_ntk only. For the others it is factor * original_length, the length they
are meant for. transformers has no static "ntk": it is the plain rope here, with the larger base.

    pip install torch==2.15.0 transformers==5.23.0
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding

# scaling: its name in transformers, and the parameters that only this one takes
SCALINGS = {
    "none": ("default", {}),
    "linear": ("linear", {}),
    "ntk": ("default", {}),
    "dynamic_ntk": ("dynamic", {}),
    "yarn": ("yarn", {"beta_fast": 32.0, "beta_slow": 1.0}),
    "llama3": ("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
}

# scaling: (factor, base, head_dim, rotary_fraction, original_length), and length where it matters
CASES = {
    "none": [
        (1, 10000, 64, 1.0, 512),
        (1, 10000, 64, 0.25, 512),
        (1, 10000, 128, 0.5, 512),
        (1, 500000, 64, 0.5, 8192),
        (1, 500000, 128, 1.0, 8192),
    ],
    "linear": [
        (1, 10000, 64, 1.0, 512),
        (2, 10000, 64, 1.0, 512),
        (4, 500000, 64, 0.25, 64),
        (8, 500000, 128, 0.5, 8192),
    ],
    "ntk": [
        (1, 10000, 64, 1.0, 512),
        (2, 10000, 64, 1.0, 512),
        (4, 10000, 64, 0.25, 64),
        (8, 10000, 128, 0.5, 512),
        (8, 500000, 128, 1.0, 8192),
    ],
    "dynamic_ntk": [
        (1, 10000, 64, 1.0, 512, 512),
        (1, 10000, 64, 1.0, 512, 2048),
        (2, 10000, 64, 1.0, 512, 100),
        (2, 10000, 64, 1.0, 512, 512),
        (2, 10000, 64, 1.0, 512, 513),
        (2, 10000, 64, 1.0, 512, 1024),
        (2, 10000, 64, 1.0, 512, 4096),
        (4, 10000, 64, 0.25, 64, 200),
        (4, 500000, 64, 0.5, 64, 256),
        (8, 10000, 128, 0.5, 512, 3000),
        (8, 500000, 128, 1.0, 8192, 8191),
        (8, 500000, 128, 1.0, 8192, 65536),
    ],
    "yarn": [
        (1, 10000, 64, 1.0, 512),
        (2, 10000, 64, 1.0, 512),
        (4, 10000, 64, 0.5, 512),
        (8, 10000, 64, 0.25, 512),
        (2, 10000, 64, 1.0, 64),
        (4, 500000, 64, 1.0, 64),
        (8, 10000, 128, 1.0, 64),
        (4, 500000, 64, 0.25, 8192),
        (4, 10000, 128, 1.0, 8192),
        (8, 500000, 128, 0.5, 8192),
        (8, 500000, 128, 1.0, 8192),
    ],
    "llama3": [
        (1, 500000, 128, 1.0, 8192),
        (2, 10000, 64, 1.0, 512),
        (4, 10000, 64, 0.25, 512),
        (8, 10000, 64, 1.0, 64),
        (4, 500000, 64, 0.5, 64),
        (8, 10000, 128, 0.5, 512),
        (2, 500000, 128, 0.5, 8192),
        (8, 500000, 128, 1.0, 8192),
    ],
}


def make_case(scaling, factor, base, head_dim, rotary_fraction, original_length, length=None):
    if length is None:
        length = factor * original_length
    theta = float(base)
    if scaling == "ntk":
        rotary_dim = int(head_dim * rotary_fraction)
        theta *= factor ** (rotary_dim / (rotary_dim - 2))
    rope_type, parameters = SCALINGS[scaling]
    parameters = {"rope_type": rope_type, "rope_theta": theta, **parameters}
    parameters["partial_rotary_factor"] = rotary_fraction
    if rope_type != "default":
        parameters["factor"] = float(factor)
    if rope_type in ("yarn", "llama3"):
        parameters["original_max_position_embeddings"] = original_length
    # GLM is one of the models whose own, unscaled rope heeds partial_rotary_factor; Llama's does
    # not. The scaled ones are common to all models.
    config = transformers.GlmConfig(
        head_dim=head_dim, max_position_embeddings=original_length, rope_parameters=parameters
    )
    compute = ROPE_INIT_FUNCTIONS.get(rope_type, GlmRotaryEmbedding.compute_default_rope_parameters)
    frequencies, attention_factor = compute(config, torch.device("cpu"), seq_len=length)
    return {
        "scaling": scaling,
        "factor": factor,
        "base": base,
        "head_dim": head_dim,
        "rotary_fraction": rotary_fraction,
        "original_length": original_length,
        "length": length,
        "inverse_frequencies": frequencies.tolist(),
        "attention_factor": attention_factor,
    }


def encode(value):
    return json.dumps(value, separators=(",", ":"))


def main():
    path = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "rope_scaling.json")
    # llama3 warns that max_position_embeddings is not the longer length; only dynamic reads it.
    transformers.logging.set_verbosity_error()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    cases = [make_case(scaling, *case) for scaling in CASES for case in CASES[scaling]]
    lines = ",\n".join(encode(case) for case in cases)
    versions = encode({"transformers": transformers.__version__, "torch": torch.__version__})
    path.write_text(f'{versions[:-1]},"cases":[\n{lines}\n]}}\n')
    print(f"{len(cases)} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
