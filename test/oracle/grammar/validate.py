"""Reads lines of {"schema": text, "answer": text} and says of each answer that is no JSON or does not validate why."""
import json
import sys

import jsonschema

checked = failed = 0
for line in sys.stdin:
    case = json.loads(line)
    checked += 1
    try:
        schema = json.loads(case["schema"])
        checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        checker.validate(json.loads(case["answer"]))
    except Exception as e:  # any error means that the answer is not valid
        failed += 1
        if failed <= 10:
            print(f"{case['schema']}\n  {case['answer']!r}\n  {type(e).__name__}: {str(e)[:300]}", file=sys.stderr)
print(json.dumps({"checked": checked, "failed": failed}))
