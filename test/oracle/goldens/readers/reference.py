"""Vectors and scores of the tiny models that metal/tinymodel writes, and of a real
one, by sentence-transformers and by the model card of Qwen3-Reranker, float32.

usage: reference.py readers.json out.json
       reference.py --real folder texts.json out.json"""

import json
import sys

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer

torch.set_grad_enabled(False)
torch.set_num_threads(1)
FLOAT = {"model_kwargs": {"dtype": torch.float32, "attn_implementation": "eager"}, "device": "cpu"}


def number(v):
    return float(f"{v:.8g}")


def ids_of(tokenizer, *texts, limit):
    return [int(i) for i in tokenizer(*texts, truncation="longest_first", max_length=limit)["input_ids"]]


def embed(case):
    model = SentenceTransformer(case["path"], **FLOAT)
    out = {"ids": [], "vectors": [], "prompted": {}}
    for text in case["texts"]:
        out["ids"].append(ids_of(model.tokenizer, text, limit=model.max_seq_length))
        out["vectors"].append([number(v) for v in model.encode([text])[0]])
    for name in case.get("prompts") or {}:
        out["prompted"][name] = [number(v) for v in model.encode([case["texts"][0]], prompt_name=name)[0]]
    # In company nothing changes but rounding.
    together = model.encode(case["texts"], batch_size=len(case["texts"]))
    assert np.abs(together - np.array(out["vectors"])).max() <= 1e-5 * np.abs(together).max(), case["name"]
    return out


def cross(case):
    model = CrossEncoder(case["path"], **FLOAT)
    query, documents = case["texts"][0], case["texts"][1:]
    limit = min(model.tokenizer.model_max_length, 64)
    return {
        "ids": [[int(i) for i in model.tokenizer([[query, d]], truncation="longest_first", max_length=limit)["input_ids"][0]] for d in documents],
        "scores": [number(model.predict([(query, d)])[0]) for d in documents],
    }


# The model card of Qwen3-Reranker.
PREFIX = '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"


def judge(case):
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["path"], padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(case["path"], dtype=torch.float32, attn_implementation="eager").eval()
    yes, no = tokenizer.convert_tokens_to_ids("yes"), tokenizer.convert_tokens_to_ids("no")
    prefix, suffix = tokenizer.encode(PREFIX, add_special_tokens=False), tokenizer.encode(SUFFIX, add_special_tokens=False)
    out = {"ids": [], "scores": []}
    for document in case["texts"][1:]:
        text = f"<Instruct>: {TASK}\n<Query>: {case['texts'][0]}\n<Document>: {document}"
        ids = prefix + ids_of(tokenizer, text, limit=1024 - len(prefix) - len(suffix)) + suffix
        logits = model(torch.tensor([ids])).logits[0, -1]
        two = torch.nn.functional.log_softmax(torch.stack([logits[no], logits[yes]]), dim=0)
        out["ids"].append(ids)
        out["scores"].append(number(two[1].exp().item()))
    # CrossEncoder makes the same score of the same two logits.
    score = sentence_transformers.cross_encoder.modules.LogitScore.load(case["path"] + "/1_LogitScore")
    odds = score({"causal_logits": logits[None, None]})["scores"][0, 0]
    assert abs(torch.sigmoid(odds).item() - out["scores"][-1]) <= 1e-6, case["name"]
    return out


def made_by():
    return (f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}, "
            f"torch {torch.__version__.split('+')[0]}, float32")


def write(path, cases):
    with open(path, "w") as f:
        f.write('{"madeBy": %s, "cases": [\n' % json.dumps(made_by()))
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")


def main():
    if sys.argv[1] == "--real":
        with open(sys.argv[3]) as f:
            texts = json.load(f)
        case = {"name": "all-MiniLM-L6-v2", "path": sys.argv[2], "texts": texts}
        write(sys.argv[4], [{"name": case["name"], "texts": texts, **embed(case)}])
        return
    out = []
    with open(sys.argv[1]) as f:
        for case in json.load(f):
            run = embed if not case["rerank"] else judge if case["family"] == "qwen3" else cross
            out.append({"name": case["name"], "sha256": case["sha256"], **run(case)})
            print(case["name"], file=sys.stderr)
    write(sys.argv[2], out)


main()
