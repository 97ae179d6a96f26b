"""Golden values for the trainer: a small GPT-2 in float64, differentiated by autograd.

usage: python make_golden.py [OUTDIR]

Writes <case>.json for every case below, by default beside this script. It is an oracle that shares
nothing with the trainer but the mathematics, so it favours the plain formula over speed everywhere.
Parameters and tokens come from an integer hash of their name and index: any language can rebuild
them bit for bit, and the files need to hold results only.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, VOCABULARY, LENGTH, BATCH, TOKENS = 2, 2, 16, 37, 24, 2, 20
HEAD_DIM = WIDTH // HEADS
PAIRS = HEAD_DIM // 2
NORM_EPSILON = 1e-5
DOCUMENT_STARTS = [[0, 7, 8], [0, 13]]
SINUSOIDAL_SCALE = math.sqrt(2) * 0.02

# The gate's bias that makes carope with a zero weight equal to rope with base 10000.
ROPE_START_BIAS = math.log(math.expm1(10000.0 ** (2 / HEAD_DIM) - 1))

# Epsilon is larger than the usual 1e-8. The k part of qkv.bias has a gradient that is zero in exact
# arithmetic for encodings that do not rotate (it shifts a whole row of scores by one constant), so
# a smaller epsilon would amplify the rounding noise of a float32 implementation into real updates.
BETA1, BETA2, EPSILON, DECAY, RATE, CLIP, STEPS = 0.9, 0.95, 1e-6, 0.1, 3e-3, 1.0, 10

DEFAULT_OPTIONS = {"layout": "half", "exponent_start": 0, "source": "hidden"}
DEFAULT_OPTIONS |= {"bias": True, "frozen": False, "base": 10000.0}

INTERLEAVED_EMBEDDING = {"layout": "interleaved", "exponent_start": 1, "source": "embedding"}

# case: (encoding, options that differ from the defaults, document starts of each row)
CASES = {
    "carope": ("carope", {}, None),
    "carope_interleaved_embedding": ("carope", INTERLEAVED_EMBEDDING, None),
    "carope_no_bias": ("carope", {"bias": False}, None),
    "carope_frozen": ("carope", {"frozen": True}, None),
    "carope_documents": ("carope", {}, DOCUMENT_STARTS),
    "rope": ("rope", {}, None),
    "rope_interleaved": ("rope", {"layout": "interleaved", "base": 500.0}, None),
    "learnable": ("learnable", {}, None),
    "learnable_documents": ("learnable", {}, DOCUMENT_STARTS),
    "sinusoidal": ("sinusoidal", {}, None),
    "none": ("none", {}, None),
    "alibi": ("alibi", {}, None),
}

# The first suffix that matches a parameter's name gives the offset and scale of its values.
VALUE_RANGES = {
    "norm.gain": (1.0, 0.1),
    ".position.weight": (0.0, 0.05),
    ".position.bias": (ROPE_START_BIAS, 0.2),
    ".bias": (0.0, 0.1),
    "": (0.0, 0.25),
}


def hashed(name, count):
    """32 well-mixed bits for each of the indices 0..count-1 of a name."""
    mask = np.uint64(0xFFFFFFFF)
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x01000193) & 0xFFFFFFFF
    # 64-bit lanes hold every 32-bit product, so masking afterwards is exact.
    x = np.uint64(seed) ^ ((np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B9)) & mask)
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(0x7FEB352D)) & mask
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(0x846CA68B)) & mask
    x ^= x >> np.uint64(16)
    return x


def make_parameter(name, shape):
    offset, scale = next(r for suffix, r in VALUE_RANGES.items() if name.endswith(suffix))
    bits = hashed(name, math.prod(shape)) >> np.uint64(8)
    unit = bits.astype(np.float64) * 2.0**-23 - 1.0
    # Through float32, so that a float32 trainer starts from exactly these values.
    values = (offset + scale * unit).astype(np.float32).astype(np.float64)
    return torch.from_numpy(values).reshape(shape)


def parameter_shapes(encoding, options):
    shapes = {"embedding": (VOCABULARY, WIDTH)}
    if encoding == "learnable":
        shapes["position.table"] = (LENGTH, WIDTH)

    def norm(name):
        shapes[name + ".gain"] = shapes[name + ".bias"] = (WIDTH,)

    def linear(name, outputs, inputs, bias=True):
        shapes[name + ".weight"] = (outputs, inputs)
        if bias:
            shapes[name + ".bias"] = (outputs,)

    for layer in range(LAYERS):
        block = f"block.{layer}."
        norm(block + "attention_norm")
        linear(block + "qkv", 3 * WIDTH, WIDTH)
        linear(block + "attention_out", WIDTH, WIDTH)
        norm(block + "mlp_norm")
        linear(block + "mlp_in", 4 * WIDTH, WIDTH)
        linear(block + "mlp_out", WIDTH, 4 * WIDTH)
        if encoding == "carope":
            linear(block + "position", HEADS, WIDTH, options["bias"])
    norm("final_norm")
    return shapes


class Model:
    def __init__(self, encoding, changed_options, document_starts):
        self.encoding = encoding
        self.options = {**DEFAULT_OPTIONS, **changed_options}
        self.document_starts = document_starts or [[0]] * BATCH
        shapes = parameter_shapes(encoding, self.options)
        self.parameters = {name: make_parameter(name, shape) for name, shape in shapes.items()}
        self.trainable = {
            name: parameter.requires_grad_()
            for name, parameter in self.parameters.items()
            if not (self.options["frozen"] and name.endswith(".position.weight"))
        }
        document = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        self.position = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        for row, starts in enumerate(self.document_starts):
            for index, start in enumerate(starts):
                document[row, start:] = index
                self.position[row, start:] = torch.arange(TOKENS - start)
        same_document = document[:, :, None] == document[:, None, :]
        self.visible = same_document & torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()

    def linear(self, x, name):
        return x @ self.parameters[name + ".weight"].T + self.parameters[name + ".bias"]

    def norm(self, x, name):
        gain, bias = self.parameters[name + ".gain"], self.parameters[name + ".bias"]
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + NORM_EPSILON) * gain + bias

    def phase(self, layer, source):
        """Phase [B, T, H, P]: the inclusive sum of increments since the document's first token."""
        if self.encoding == "rope":
            theta = self.options["base"] ** (-2.0 * torch.arange(PAIRS) / HEAD_DIM)
            increments = theta.expand(BATCH, TOKENS, HEADS, PAIRS)
        else:
            z = source @ self.parameters[f"block.{layer}.position.weight"].T
            if self.options["bias"]:
                z = z + self.parameters[f"block.{layer}.position.bias"]
            # Not the library's softplus, which is the identity above 20.
            frequency = 1 / (torch.logaddexp(z, torch.zeros_like(z)) + 1)
            exponents = torch.arange(PAIRS) + self.options["exponent_start"]
            increments = frequency.unsqueeze(-1) ** exponents
        rows = []
        for row, starts in zip(increments, self.document_starts):
            sizes = np.diff([*starts, TOKENS]).tolist()
            rows.append(torch.cat([part.cumsum(0) for part in row.split(sizes)]))
        return torch.stack(rows)

    def rotate(self, x, phase):
        if self.options["layout"] == "half":
            x0, x1 = x[..., :PAIRS], x[..., PAIRS:]
        else:
            x0, x1 = x[..., 0::2], x[..., 1::2]
        y0 = x0 * phase.cos() - x1 * phase.sin()
        y1 = x0 * phase.sin() + x1 * phase.cos()
        if self.options["layout"] == "half":
            return torch.cat([y0, y1], -1)
        return torch.stack([y0, y1], -1).flatten(-2)

    def attend(self, q, k, v):
        """q, k, v and the result are [B, H, T, D]."""
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM)
        if self.encoding == "alibi":
            slopes = 2.0 ** (-8.0 * (torch.arange(HEADS) + 1) / HEADS)
            steps = torch.arange(TOKENS)
            scores = scores - slopes[:, None, None] * (steps[:, None] - steps[None, :])
        scores = scores.masked_fill(~self.visible[:, None], -math.inf)
        return scores.softmax(-1) @ v

    def logits(self, inputs):
        embedded = self.parameters["embedding"][inputs]
        x = embedded
        if self.encoding == "learnable":
            x = x + self.parameters["position.table"][self.position]
        elif self.encoding == "sinusoidal":
            frequency = 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
            angle = self.position[..., None] * frequency
            x = x + SINUSOIDAL_SCALE * torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
        for layer in range(LAYERS):
            block = f"block.{layer}."
            hidden = self.norm(x, block + "attention_norm")
            qkv = self.linear(hidden, block + "qkv").split(WIDTH, -1)
            q, k, v = (part.unflatten(-1, (HEADS, HEAD_DIM)) for part in qkv)
            if self.encoding in ("carope", "rope"):
                source = hidden if self.options["source"] == "hidden" else embedded
                phase = self.phase(layer, source)
                q, k = self.rotate(q, phase), self.rotate(k, phase)
            mixed = self.attend(*(part.transpose(1, 2) for part in (q, k, v)))
            x = x + self.linear(mixed.transpose(1, 2).flatten(-2), block + "attention_out")
            inner = self.linear(self.norm(x, block + "mlp_norm"), block + "mlp_in")
            cubic = math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)
            x = x + self.linear(0.5 * inner * (1 + cubic.tanh()), block + "mlp_out")
        return self.norm(x, "final_norm") @ self.parameters["embedding"].T

    def evaluate(self, inputs, targets):
        logits = self.logits(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        gradients = torch.autograd.grad(loss, list(self.trainable.values()))
        return logits.detach(), loss.item(), dict(zip(self.trainable, gradients))


def clipped(gradients):
    """The global norm before clipping, and the gradients after it."""
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients.values()))
    scale = min(1.0, CLIP / norm)
    return norm, {name: scale * gradient for name, gradient in gradients.items()}


def train(model, inputs, targets):
    """AdamW with decoupled decay on every tensor of two dimensions; returns losses and norms."""
    first = {name: torch.zeros_like(value) for name, value in model.trainable.items()}
    second = {name: torch.zeros_like(value) for name, value in model.trainable.items()}
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        _, loss, gradients = model.evaluate(inputs, targets)
        norm, gradients = clipped(gradients)
        losses.append(loss)
        norms.append(norm)
        with torch.no_grad():
            for name, parameter in model.trainable.items():
                first[name] = BETA1 * first[name] + (1 - BETA1) * gradients[name]
                second[name] = BETA2 * second[name] + (1 - BETA2) * gradients[name] ** 2
                mean = first[name] / (1 - BETA1**step)
                deviation = (second[name] / (1 - BETA2**step)).sqrt()
                decay = DECAY if parameter.dim() >= 2 else 0.0
                parameter -= RATE * (mean / (deviation + EPSILON) + decay * parameter)
    return losses, norms


def make_tokens():
    bits = hashed("tokens", BATCH * (TOKENS + 1)) % np.uint64(VOCABULARY)
    tokens = torch.from_numpy(bits.astype(np.int64)).reshape(BATCH, TOKENS + 1)
    return tokens[:, :-1], tokens[:, 1:]


def check_optimizer(inputs, targets):
    ours, theirs = Model(*CASES["carope"]), Model(*CASES["carope"])
    train(ours, inputs, targets)
    parameters = theirs.trainable.values()
    decayed = {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": DECAY}
    plain = {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}
    library = torch.optim.AdamW([decayed, plain], lr=RATE, betas=(BETA1, BETA2), eps=EPSILON)
    for _ in range(STEPS):
        _, gradients = clipped(theirs.evaluate(inputs, targets)[2])
        for name, parameter in theirs.trainable.items():
            parameter.grad = gradients[name]
        library.step()
    for name, parameter in ours.parameters.items():
        assert (parameter - theirs.parameters[name]).abs().max() < 1e-12, name


def check_attention(inputs, targets):
    ours, theirs = Model(*CASES["none"]), Model(*CASES["none"])
    theirs.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    _, our_loss, our_gradients = ours.evaluate(inputs, targets)
    _, their_loss, their_gradients = theirs.evaluate(inputs, targets)
    assert abs(our_loss - their_loss) < 1e-10
    for name, gradient in our_gradients.items():
        assert (gradient - their_gradients[name]).abs().max() < 1e-10, name


def check_rope_start(inputs):
    """carope with a zero weight and the start bias is rope."""
    carope, rope = Model(*CASES["carope"]), Model(*CASES["rope"])
    with torch.no_grad():
        for layer in range(LAYERS):
            carope.parameters[f"block.{layer}.position.weight"].zero_()
            carope.parameters[f"block.{layer}.position.bias"].fill_(ROPE_START_BIAS)
        assert (carope.logits(inputs) - rope.logits(inputs)).abs().max() < 1e-10


def encode(value, indent=""):
    """JSON with nine digits a number, one line for each list and each member of an object."""
    if isinstance(value, torch.Tensor):
        value = value.detach().flatten().tolist()
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list):
        return "[" + ",".join(encode(item) for item in value) + "]"
    if isinstance(value, dict) and value:
        deeper = indent + " "
        members = [f"{deeper}{json.dumps(k)}: {encode(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(members) + "\n" + indent + "}"
    return json.dumps(value)


def make_case(case, inputs, targets):
    encoding, options, document_starts = CASES[case]
    model = Model(encoding, options, document_starts)
    logits, loss, gradients = model.evaluate(inputs, targets)
    step_losses, step_norms = train(model, inputs, targets)
    config = {"layers": LAYERS, "heads": HEADS, "width": WIDTH, "vocabulary": VOCABULARY}
    config |= {"length": LENGTH, "batch": BATCH, "tokens": TOKENS, "encoding": encoding}
    config |= {"options": options, "document_starts": document_starts}
    optimizer = {"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON, "decay": DECAY}
    optimizer |= {"learning_rate": RATE, "clip": CLIP, "steps": STEPS}
    result = {"case": case, "config": config, "optimizer": optimizer, "logits": logits}
    result |= {"loss": loss, "gradients": gradients, "step_losses": step_losses}
    # A frozen parameter appears in "final" only: unchanged, which is what there is to check.
    return result | {"step_norms": step_norms, "final": model.parameters}


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    # One thread fixes the order of every sum, so that a rerun writes the same bytes.
    torch.set_num_threads(1)
    inputs, targets = make_tokens()
    check_optimizer(inputs, targets)
    check_attention(inputs, targets)
    check_rope_start(inputs)
    for case in CASES:
        result = make_case(case, inputs, targets)
        text = encode(result) + "\n"
        (folder / f"{case}.json").write_text(text)
        losses = result["step_losses"]
        print(f"{case}: loss {losses[0]:.6f} to {losses[-1]:.6f}, {len(text)} bytes")


if __name__ == "__main__":
    main()
