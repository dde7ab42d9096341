"""Print each rule's distance to the target's distribution, and its tokens per step.

python tests/methods/draft/verifiers/table.py [languages]
"""

import sys
from statistics import mean

from builders import BUILDERS
from languages import RULES, Language, distance, drafts, emitted, expected_length

SHOWN = {
    "chain": "rejection block traversal nss",
    "iid 2x2": "rejection specinfer naive-tree spectr traversal nss",
    "iid 2x2, equal draws in one node": "rejection specinfer naive-tree spectr traversal nss",
    "iid trunk 1, then 2x1": "rejection specinfer naive-tree spectr traversal nss",
    "swor 2x2": "rejection rsd naive-tree traversal nss",
    "adaptive swor, 4 nodes": "rejection rsd naive-tree traversal nss",
    "rule 2x2": "rsd traversal nss",
}


def main(count: int) -> None:
    languages = [Language(seed) for seed in range(count)]
    for name, rules in SHOWN.items():
        trees = [drafts(BUILDERS[name], language) for language in languages]
        for rule in rules.split():
            laws = [emitted(RULES[rule], t, lang) for t, lang in zip(trees, languages)]
            worst = max(distance(law, lang) for law, lang in zip(laws, languages))
            length = mean(map(expected_length, laws))
            print(f"| {name} | {rule} | {worst:.1e} | {length:.3f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
