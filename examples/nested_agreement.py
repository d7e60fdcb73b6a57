"""Words that agree in nested pairs, as brackets do, by hidden kinds: from a text to training by exact likelihood."""

import torch

from rankfold import fgg

STRUCTURE = """
domain Z = 6; domain K = 3; observed V = 8
factor kind: Z, K
S() -> root(z) X(z)
X(z: Z) -> kind(z, 0) open(z, a: V) close(z, b: V)
X(z) -> kind(z, 1) open(z, a) inside(z, y: Z) X(y) close(z, b)
X(z) -> kind(z, 2) left(z, x: Z) X(x) right(z, y: Z) X(y)
"""


def main(steps: int = 60) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    one, two = torch.randint(4, (2, 32), generator=generator)  # word w opens a pair that w + 4 closes
    batches = [torch.stack((one, two, two + 4, one + 4), 1), torch.stack((one, one + 4, two, two + 4), 1)]
    grammar = fgg.parse(STRUCTURE)
    shapes = {x.name: [grammar.size(domain) for domain in x.type] for x in grammar.labels if x.is_terminal}
    scores = {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}
    optimizer = torch.optim.Adam(scores.values(), lr=0.1)
    losses = []
    for _ in range(steps):
        model = grammar.with_factors({name: x.softmax(-1) for name, x in scores.items()})
        loss = -torch.cat([fgg.sum_product(fgg.conjoin(model, fgg.string_query(words))) for words in batches]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    found = main()
    print(f"nats a sentence: {found[0]:.3f} before training, {found[-1]:.3f} after")
