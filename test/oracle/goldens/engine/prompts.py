"""Prompts that differ in what a tokenizer and a network can get wrong."""

LOG = " ".join(
    f"At minute {n} the {what} had served {n * n + 7} requests and held {n % 5} models in memory."
    for n, what in enumerate(["first Mac", "second Mac", "gateway", "operator"] * 7, start=1)
)

VARIED = [
    "The capital of France is",
    "a",
    " \n\n\t  \n ",
    "   leading and trailing blanks   ",
    "def quicksort(items):\n    if len(items) < 2:\n        return items\n\tpivot = items[0]\n",
    "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tfor i := 0; i < 10; i++ {\n\t\tfmt.Printf(\"%d\\n\", i*i)\n",
    "从前有一座山,山上有一座庙。",
    "東京は日本の首都です。富士山は",
    "대한민국의 수도는 서울이고, ",
    "عاصمة فرنسا هي باريس. एक समय की बात है",
    "I \u2764\ufe0f coding \U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7!",
    "Na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \u2026 \u00bd \u221a2 e\u0301 \u1e69",
    "12345 + 67890 = 80235; 3.14159 * 2 =",
    "{\"name\": \"engine\", \"tags\": [\"a\", \"b\"], \"size\": 4096, \"nested\": {\"ok\": true",
    "<|im_start|>user\nSay hello in three languages.<|im_end|>\n<|im_start|>assistant\n",
    "ha " * 40,
    LOG,
]
