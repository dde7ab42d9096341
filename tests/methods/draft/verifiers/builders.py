"""The drafters for which every exact verifier is checked."""

from languages import Builder, adaptive, after, levels, mixed, pooled

BUILDERS: dict[str, Builder] = {
    "chain": levels("iid", 1, 1, 1),
    "chain, rule": levels("top", 1, 1, 1),
    "iid 2x2": levels("iid", 2, 2),
    "iid 2x2, equal draws in one node": pooled(2, 2),
    "iid 3": levels("iid", 3),
    "iid trunk 1, then 2x1": levels("iid", 1, 2, 1),
    "swor 2x2": levels("swor", 2, 2),
    "swor 3x1": levels("swor", 3, 1),
    "rule 2x2": levels("top", 2, 2),
    "adaptive swor, 3 nodes": adaptive(3),
    "adaptive swor, 4 nodes": adaptive(4),
    "iid over rule": mixed("iid", "top"),
    "rule over swor": mixed("top", "swor"),
    "swor over iid": mixed("swor", "iid"),
    "swor 2x2, first 3 drawn": after(levels("swor", 2, 2), lambda tree, _: tree.first(3)),
    "iid 2x2, first 4 drawn": after(levels("iid", 2, 2), lambda tree, _: tree.first(4)),
    "pooled 2x2, first 2": after(pooled(2, 2), lambda tree, _: tree.first(2)),
    "swor 2x2, clipped to depth 1": after(levels("swor", 2, 2), lambda tree, _: tree.clip(1)),
    "swor 2x2, likely ones kept": after(
        levels("swor", 2, 2), lambda tree, language: tree.select(language.likely(tree, 0.2))
    ),
    "swor 2x2, best 3 kept": after(
        levels("swor", 2, 2), lambda tree, language: language.ranked(tree).best(3)
    ),
    "adaptive swor, best 2 kept": after(
        adaptive(3), lambda tree, language: language.ranked(tree).best(2)
    ),
    "no draft": levels("iid"),
}
