"""`paradecode train`: train the small parts of methods, and models of one's own."""

from __future__ import annotations

import typer

from paradecode_lab.commands.train_acceptance import acceptance_head, reward, tree_selector
from paradecode_lab.commands.train_adapt import adapt
from paradecode_lab.commands.train_diffusion import train_autoregressive, train_diffusion
from paradecode_lab.commands.train_head import head, plan
from paradecode_lab.commands.train_measured import chunk_scores, draft_tree, ngram_table, priors
from paradecode_lab.commands.train_retrained import (
    assd,
    deer,
    first,
    hamburger,
    lora_drop,
    lud,
    nested,
    wedlm,
)  # fmt: skip
from paradecode_lab.commands.train_unmasking import (
    dparallel,
    jacobi,
    joint_sampler,
    r2,
    refine,
    unmask_filter,
)  # fmt: skip

train_app = typer.Typer(
    help="Train the small parts that some methods need.", no_args_is_help=True, add_completion=False
)
COMMANDS = {
    "acceptance-head": acceptance_head, "tree-selector": tree_selector,
    "diffusion": train_diffusion, "autoregressive": train_autoregressive, "adapt": adapt,
    "head": head, "plan": plan, "ngram-table": ngram_table, "priors": priors,
    "draft-tree": draft_tree, "reward": reward, "lud": lud, "wedlm": wedlm, "assd": assd,
    "deer": deer, "first": first, "sorted": nested, "lora-drop": lora_drop,
    "hamburger": hamburger, "chunk-scores": chunk_scores, "unmask-filter": unmask_filter,
    "joint-sampler": joint_sampler, "refine": refine, "r2": r2, "dparallel": dparallel,
    "jacobi": jacobi,
}  # fmt: skip
for name, command in COMMANDS.items():
    train_app.command(name=name)(command)
