"""Methods with a draft head. The base class does the work, and only the heads differ.

The head's folder says which kind of head it is.
"""

from __future__ import annotations

from paradecode.methods.draft.head_drafter import HeadDrafter, head_method
from paradecode.methods.parts import parameter


@head_method(
    "medusa",
    "published Medusa heads of the target",
    paper="Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
    arxiv="2401.10774",
)
class Medusa(HeadDrafter):
    """Several heads guess the next tokens at once, from one hidden state of the target.

    Cai et al. 2024. The guesses are independent of one another: the tree is made of the most
    probable paths through all of them, in place of the paper's fixed tree. The paper's typical
    acceptance is ``medusa(head=...,verifier=typical)``; by default verification is exact. Heads
    with LM heads of their own can be read, and heads that share the target's LM head.

    When: there are such heads, and a head must cost next to nothing.
    """


@head_method(
    "eagle",
    "a published EAGLE-1, 2 or 3 head of the target",
    "eagle",
    "eagle3",
    paper="EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time "
    "Test",
    arxiv="2503.01840",
    aliases=("eagle1", "eagle2", "eagle3", "eagle-1", "eagle-2", "eagle-3"),
    names={"num_steps": "depth", "eagle_topk": "width"},
)
class Eagle(HeadDrafter):
    """A head of one layer reads the target's states and drafts a tree of its surest guesses.

    EAGLE-1 (Li et al. 2024, arXiv 2401.15077) reads the target's last layer, EAGLE-3 (2025) three
    layers; the folder says which. The tree is EAGLE-2's (arXiv 2406.16858): the most probable
    paths, level by level. Folders of SafeAILab/EAGLE and of speculators can be read.

    When: there is a head for the target, and the text is new. ``suffix+eagle(head=...)`` copies
    where the text repeats and drafts elsewhere.
    """


@head_method(
    "p-eagle",
    "a published P-EAGLE head of the target",
    paper="P-EAGLE: Parallel-Drafting EAGLE with Scalable Training",
    arxiv="2602.01469",
    aliases=("peagle", "parallel-eagle"),
)
class PEagle(HeadDrafter):
    """Masks after the last token stand for the tokens to come; one forward pass guesses them all.

    EAGLE needs a forward for each level. This head needs one forward for the whole draft, so a deep
    draft costs little more than a shallow one. The tree is made of the most probable paths through
    the guesses, which are independent of one another.

    When: there is such a head, and the levels of an EAGLE draft take too long.
    """


@head_method(
    "mtp",
    "the target's own MTP module",
    paper="DeepSeek-V3 Technical Report",
    arxiv="2412.19437",
    aliases=("nextn",),
)
class Mtp(HeadDrafter):
    """The target's module for multi-token prediction drafts; it runs again for each further token.

    Gloeckle et al. 2024 (arXiv 2404.19737), DeepSeek-AI 2024, FastMTP (arXiv 2509.18362). The
    tensors may have the names of DeepSeek, of Qwen3-Next or of speculators.

    When: the target was trained with such a module.
    """


@head_method(
    "dovetail",
    "a Dovetail head of the target",
    paper="Dovetail: A CPU/GPU Heterogeneous Speculative Decoding for LLM inference",
    arxiv="2412.18934",
)
class Dovetail(HeadDrafter):
    """A gate weighs the target's state against the token, and several layers draft from the result.

    Zhang et al. 2024. Where a row of the target is expensive, few nodes are worth verifying, so a
    better head is worth its cost. The paper verifies 16 nodes on a CPU and drafts on a GPU
    (``draft_device``, for any head). Here the budget decides the number of nodes.

    When: there is such a head, and the target's rows cost much.
    """

    depth: int = parameter(7, 1, 16, "most levels of a draft")


@head_method(
    "falcon",
    "a Falcon head of the target",
    paper="Falcon: Faster and Parallel Inference of Large Language Models through Enhanced "
    "Semi-Autoregressive Drafting and Custom-Designed Decoding Tree",
    arxiv="2412.12639",
)
class Falcon(HeadDrafter):
    """Semi-autoregressive: rows that attend to one another guess one token each, block by block.

    Gao et al. 2024. Two levels cost one pass of the head (the head says how many rows form a
    block). The guesses of a block are independent of one another, but the next block reads them
    all. An LSTM before the layer, and training in which some answers are shown, make up for that
    independence. The tree grows where the head is surest, in place of the paper's fixed tree.

    When: there is such a head, and the levels of an EAGLE draft take too long.
    """


@head_method(
    "clover",
    "a Clover or Clover-2 head of the target",
    "clover",
    "clover-2",
    paper="Clover-2: Accurate Inference for Regressive Lightweight Speculative Decoding",
    arxiv="2408.00264",
    aliases=("clover2", "clover-2"),
)
class Clover(HeadDrafter):
    """Layers read the target's last states; after them a cell takes in one token after another.

    Clover (Xiao et al. 2024, arXiv 2405.00263) and Clover-2 (2024); the folder says which. Medusa's
    guesses are independent of one another; here each guess depends on the tokens before it. EAGLE
    runs a layer for each level; this head runs a recurrent cell, which has neither attention nor a
    K/V cache. The tree is grown as for ``eagle``, in place of the paper's cut at a probability mass
    for each node.

    When: there is such a head, and the layer of an EAGLE draft takes too long.
    """


@head_method(
    "chimera",
    "a Chimera head of the target",
    paper="Chimera: A Lossless Decoding Method for Accelerating Large Language Models Inference by "
    "Fusing all Tokens",
    arxiv="2402.15758",
)
class Chimera(HeadDrafter):
    """A layer combines each new token's trigram with the target's states of all earlier tokens.

    Zeng et al. 2024. The trigram stands in for the target's lower layers, the states for the upper
    ones. Each level has an LM head of its own, which also reads the last hidden state of the
    target. The tree grows where the head is surest, in place of the paper's fixed tree.

    When: there is such a head. Its LM heads read twice as much memory as the LM heads of other
    heads: ``vocabulary`` helps.
    """


@head_method(
    "longspec",
    "a LongSpec layer of the target",
    paper="LongSpec: Long-Context Lossless Speculative Decoding with Efficient Drafting and "
    "Verification",
    arxiv="2502.17421",
)
class LongSpec(HeadDrafter):
    """One layer attends to the last 512 tokens, and to the target's last layer for the whole text.

    Yang et al. 2025. A token's embedding goes through attention to the last tokens, attention to
    the target's keys and values, and an MLP. The layer's own keys and values do not grow with the
    text.

    The target's keys and values are not read from its cache: the head computes them again and
    stores them. This takes as much memory as one layer of the target for the whole text, even if
    the target's own layers attend only to a window. The tree grows where the head is surest; the
    paper's tree has a level of 4 nodes and four levels of 16.

    When: texts are long, and there is such a head.
    """

    depth: int = parameter(5, 1, 16, "most levels of a draft")


@head_method(
    "dflash",
    "a published DFlash or DFlash2 head of the target",
    "dflash",
    "dflash2",
    paper="DFlash: Block Diffusion for Flash Speculative Decoding",
    arxiv="2602.06036",
    aliases=("dflash2",),
)
class DFlash(HeadDrafter):
    """A few layers fill a whole block of masks at once, with the target's states as their context.

    Every layer attends to the target's hidden states of the text as keys and values of its own, and
    the masks attend to one another. P-EAGLE's masks attend only to earlier masks; these masks are
    denoised together, in one step. The tree is made of the most probable paths through the guesses.
    Folders of speculators and of z-lab can be read; the head says how long a block is.

    DFlash2 mixes each row with the row before it. A selector chooses between the most probable
    tokens of each row by the token before it, so the tree grows level by level.

    When: there is such a head: a draft of eight tokens costs one forward pass of the head.
    """


@head_method(
    "dspark",
    "a published DSpark head of the target",
    paper="DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation",
    arxiv="2607.05147",
)
class DSpark(HeadDrafter):
    """A block of masks is filled in one forward; a small table makes its tokens follow one another.

    The layers are DFlash's. Each token adds an amount to the logits of the next one, which is a
    product of two narrow matrices, so the tree grows level by level without another forward pass.
    The head's own estimates of acceptance are not read, because estimates are corrected by counted
    acceptances.

    When: there is such a head.
    """


@head_method(
    "flexdraft",
    "a FlexDraft checkpoint of the target",
    paper="FlexDraft: Flexible Speculative Decoding via Attention Tuning and Bonus-Guided "
    "Calibration",
    arxiv="2605.20022",
)
class FlexDraft(HeadDrafter):
    """A block of masks enters the target in the middle, and its last layers fill them at once.

    Zhang et al. 2026. In these layers the masks have attention projections of their own; norms,
    MLPs and the keys and values of the text are the target's. The masks do not attend to the token
    that the verification added. When it is known, a small MLP corrects all guesses.

    The paper computes a block after every draft token during the verification (at small batches),
    or one block after the verification (at large ones). The guesses are the same. Here one block is
    computed after the verification, by a head that holds copies of these layers and stores their
    keys and values of the text a second time. A measured bound in ``docs/methods.md`` says what the
    other mode could save.

    When: there is such a checkpoint, and the target is so large that a few of its layers are a
    small part of it.
    """
