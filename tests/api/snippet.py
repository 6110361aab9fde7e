"""The public API from text to a saved model, as users write it: without a main guard, with lists and a data frame.

The tests run it as a script and in a notebook, and `make check` checks its types.
"""

import pandas

import bertsmith as bs

rows = [("A fine film.", "positive"), ("A slow film.", "negative")] * 20
test_rows = pandas.DataFrame(rows[:4], columns=["text", "label"])

tokenizer = bs.train_tokenizer(["corpus/"], "tokenizer", vocab_size=500)
shards = bs.prepare(["corpus/"], "shards", tokenizer=tokenizer)  # paths, or any iterable of texts
run = bs.pretrain("bert/tiny", shards, "run", steps=4, batch_size=8, encoder={"layers": 1, "width": 32})
model = bs.finetune(run.best, "classification", train=rows, dev=0.5, output="reviews", epochs=1)
scores = bs.evaluate(model, rows[:4])
model.predict(["A fine film."])
model.save("folder")
model = bs.load("folder")

assert bs.evaluate(model, test_rows)["accuracy"] == scores["accuracy"]
label: str = model.predict(["A fine film."])[0]["label"]
print(label, run.best.name)


def misspelt() -> None:
    bs.pretrain("bert/tiny", shards, "run", stps=4)  # type: ignore[call-arg]
