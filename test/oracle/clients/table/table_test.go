//go:build !race

package table

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTheRowsAreSound(t *testing.T) {
	rows, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Clients() {
		n := 0
		for _, r := range rows {
			if r.For(c) {
				n++
			}
		}
		if n < 12 {
			t.Errorf("%s plays %d rows", c.Name, n)
		}
	}
}

func TestRowsThatAreNotSoundAreRefused(t *testing.T) {
	const steps = "says: s\n  steps: [{call: c, want: {result: 1}}]"
	for name, tc := range map[string]struct{ rows, says string }{
		"no want":              {rows: "- row: a\n  api: openai\n  says: s\n  steps: [{call: c}]", says: "wants nothing"},
		"no steps":             {rows: "- row: a\n  api: openai\n  says: s", says: "a row has a name, a sentence and steps"},
		"an unknown API":       {rows: "- row: a\n  api: other\n  " + steps, says: "no client speaks"},
		"another API's client": {rows: "- row: a\n  api: openai\n  clients: [anthropic-python]\n  why: w\n  " + steps, says: "is no client of openai"},
		"left out, and no why": {rows: "- row: a\n  api: openai\n  clients: [openai-go]\n  " + steps, says: "go together"},
		"twice":                {rows: "- row: a\n  api: openai\n  " + steps + "\n- row: a\n  api: openai\n  " + steps, says: "stands twice"},
		"a key, and no keys":   {rows: "- row: a\n  api: openai\n  says: s\n  steps: [{call: c, key: k, want: {result: 1}}]", says: "go together"},
		"keys, and no key":     {rows: "- row: a\n  api: openai\n  keys: true\n  " + steps, says: "go together"},
		"an unknown member":    {rows: "- row: a\n  colour: blue\n  api: openai\n  " + steps, says: "colour"},
	} {
		if _, err := parse([]byte(tc.rows)); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAReplyIsJudged(t *testing.T) {
	var reply any
	if err := json.Unmarshal([]byte(`{"result":{"a":1,"list":[{"x":"p","n":2},{"x":"q","n":3}],"none":null},"error":null}`), &reply); err != nil {
		t.Fatal(err)
	}
	kept := map[string]any{"one": 1.0, "word": "p"}
	for name, tc := range map[string]struct {
		path, lacks string // empty: it holds
		want        any
	}{
		"equal":              {path: "result.a", want: 1},
		"not equal":          {path: "result.a", lacks: "is does not hold", want: 2},
		"what was kept":      {path: "result.a", want: "${one}"},
		"nothing was kept":   {path: "result.a", lacks: "nothing was kept", want: "${two}"},
		"in a text":          {path: "result.list.0.x", want: map[string]any{"matches": "^${word}$"}},
		"missing":            {path: "result.b", lacks: "it is not there", want: 1},
		"missing, as wanted": {path: "result.b", want: map[string]any{"exists": false}},
		"there, unwanted":    {path: "result.a", lacks: "want false", want: map[string]any{"exists": false}},
		"null":               {path: "result.none", want: nil},
		"from the end":       {path: "result.list.-1.x", want: "q"},
		"each":               {path: "result.list.*.n", want: map[string]any{"least": 2}},
		"not each":           {path: "result.list.*.n", lacks: "least does not hold of 2", want: map[string]any{"least": 3}},
		"most":               {path: "result.list.*.n", lacks: "most does not hold of 3", want: map[string]any{"most": 2}},
		"joined":             {path: "result.list.*.x", want: map[string]any{"joined": "pq"}},
		"joined otherwise":   {path: "result.list.*.x", lacks: "together", want: map[string]any{"joined": "p"}},
		"length":             {path: "result.list", want: map[string]any{"length": 2}},
		"another length":     {path: "result.list", lacks: "length does not hold", want: map[string]any{"length": 1}},
		"length of nothing":  {path: "result.none", lacks: "length does not hold", want: map[string]any{"length": 0}},
		"how many":           {path: "result.list.#", want: map[string]any{"least": 2}},
		"one of":             {path: "result.a", lacks: "one_of does not hold", want: map[string]any{"one_of": []any{2.0, 3.0}}},
		"contains":           {path: "result.list", lacks: "contains does not hold", want: map[string]any{"contains": "z"}},
		"not":                {path: "result.a", lacks: "not does not hold", want: map[string]any{"not": 1}},
		"an unknown rule":    {path: "result.a", lacks: "there is no rule", want: map[string]any{"about": 1}},
	} {
		err := Judge(map[string]any{tc.path: tc.want}, reply, kept)
		if (err == nil) != (tc.lacks == "") || err != nil && !strings.Contains(err.Error(), tc.lacks) {
			t.Errorf("%s: %v, want %q", name, err, tc.lacks)
		}
	}
}

func TestAnErrorThatNobodyWantsFailsARow(t *testing.T) {
	reply := map[string]any{"result": map[string]any{"a": 1.0}, "error": map[string]any{"class": "BadRequestError"}}
	if err := Judge(map[string]any{"result.a": 1}, reply, nil); err == nil || !strings.Contains(err.Error(), "an error came") {
		t.Error(err)
	}
	want := map[string]any{"error.class": "BadRequestError"}
	if err := Judge(want, reply, nil); err != nil {
		t.Error(err)
	}
	if err := Judge(Client{Error: "Error"}.Wants(want), reply, nil); err == nil {
		t.Error("a client with one class of errors has to show that one")
	}
}
