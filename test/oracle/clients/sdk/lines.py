# What the two runners in Python share: a call for each line on the standard input, a reply for each on the standard output.
import json
import sys


def play(client, calls, refused, failure):
    """Plays calls until the input ends; refused is what a client raises, and failure the reply that it becomes."""
    for line in sys.stdin:
        ask = json.loads(line)
        args = ask.get("args") or {}
        if ask.get("extra"):
            args["extra_body"] = ask["extra"]
        client.api_key = ask.get("key") or "none"
        try:
            reply = calls[ask["call"]](**args)
        except refused as e:
            reply = failure(e)
        except Exception as e:  # a row that this runner cannot play is one that fails
            reply = {"error": {"class": type(e).__name__, "message": "runner: " + repr(e)}}
        print(json.dumps(reply), flush=True)
